"""What a world needs of a `ConnectionState` to be explored: a twin that changes independently, and its tables as part
of a key."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import TypeVar

from trio_mcp.state.connection import ConnectionState

__all__ = ["key_of", "twin_of"]

S = TypeVar("S", bound=ConnectionState)


def twin_of(state: S) -> S:
    """Return a state with the same requests in tables of its own. The requests are shared: no step changes them."""
    twin = copy.copy(state)
    for name, table in vars(state).items():
        if type(table) in (dict, set):
            setattr(twin, name, table.copy())
    return twin


def key_of(state: ConnectionState) -> Hashable:
    """Return the ids in all tables, sorted, and the next id. The order in a table decides nothing but the order in
    which calls hear of the loss of the connection."""
    tables = [
        tuple(sorted(repr(getattr(each, "id", each)) for each in table))
        for table in vars(state).values()
        if type(table) in (dict, set)
    ]
    return (*tables, state._next_id, state.initialized, state.revision and state.revision.name)
