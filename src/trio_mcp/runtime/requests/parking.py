"""Parking keeps requests that were answered with questions, while their handlers wait for the client to come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

if TYPE_CHECKING:
    from ...concurrency.fair_share import Caller
    from ...concurrency.wakeups import Alarm, Alarms
    from ...state.requests import InboundRequest

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@attrs.frozen(eq=False)
class _Place(Generic[T]):
    parked: T
    request: InboundRequest
    party: object
    caller: Caller
    alarm: Alarm


class Parking(Generic[T]):
    """The parked handlers of a running server or client, each under a handle that is good for one retry.

    Only the ``party`` for whom a handler was parked finds the handler again: a principal from any connection or,
    without a principal, the same connection (DESIGN ruling 19). A handler stays for up to ``timeout`` seconds; when one
    caller has more than ``most``, its oldest goes. ``expire`` is called with each handler that goes in either way, and
    with the reason. All methods are synchronous.
    """

    def __init__(self, alarms: Alarms, timeout: float, most: int, expire: Callable[[T, str], None]) -> None:
        self._alarms = alarms
        self._timeout = timeout
        self._most = most
        self._expire = expire
        self._places: dict[bytes, _Place[T]] = {}
        """Places by handle, oldest first."""
        self._handles: dict[InboundRequest, bytes] = {}
        self._parties: dict[object, dict[bytes, None]] = {}
        """Handles of each party, oldest first."""
        self._callers: dict[Caller, dict[bytes, None]] = {}
        """Handles of each caller, oldest first."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the handlers parked now, oldest first."""
        return iter([place.parked for place in self._places.values()])

    def of(self, party: object) -> list[T]:
        """Return the handlers parked for ``party``, oldest first."""
        return [self._places[handle].parked for handle in self._parties.get(party, ())]

    def named(self, request: InboundRequest) -> T | None:
        """Return the handler parked when ``request`` was answered with questions; `None` when that handler is parked no
        more."""
        handle = self._handles.get(request)
        return None if handle is None else self._places[handle].parked

    def find(self, handle: bytes, party: object) -> T | None:
        """Return the handler parked for ``party`` under ``handle``; `None` when the handle is not, or no longer,
        good."""
        place = self._places.get(handle)
        return place.parked if place is not None and place.party == party else None

    def keep(self, handle: bytes, parked: T, request: InboundRequest, party: object, caller: Caller) -> None:
        """Keep ``parked``, whose ``request`` was answered with questions, for ``party`` under ``handle``, in the share
        of ``caller``."""
        due = trio.current_time() + self._timeout if self._timeout < math.inf else math.inf
        alarm = self._alarms.set(due, partial(self._ring, handle))
        self._places[handle] = _Place(parked, request, party, caller, alarm)
        self._handles[request] = handle
        self._parties.setdefault(party, {})[handle] = None
        handles = self._callers.setdefault(caller, {})
        handles[handle] = None
        if len(handles) > self._most:
            self._expire(self._places[next(iter(handles))].parked, "too many handlers wait for answers")

    def forget(self, request: InboundRequest) -> bool:
        """Forget the handler parked when ``request`` was answered. Return false when the handler was forgotten
        before."""
        handle = self._handles.pop(request, None)
        if handle is None:
            return False
        place = self._places.pop(handle)
        place.alarm.stop()
        _remove(self._parties, place.party, handle)
        _remove(self._callers, place.caller, handle)
        return True

    def _ring(self, handle: bytes) -> None:
        self._expire(self._places[handle].parked, f"no answers came within {self._timeout:g} seconds")


def _remove(table: dict[K, dict[bytes, None]], key: K, handle: bytes) -> None:
    handles = table[key]
    del handles[handle]
    if not handles:
        del table[key]
