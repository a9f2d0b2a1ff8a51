"""Reads and saves an earlier response to ``server/discover``, with which a client opens without a round trip.

`read_prior` checks a saved response, and `saved` makes one. Programs that do neither don't import this module.
`PriorClient` uses the response.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias, cast

from ..classes import frozen
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.meta import SERVER_INFO
from ..protocol.revisions import LATEST_MODERN, MODERN_REVISIONS, Revision
from ..protocol.types.lifecycle import DiscoverResult, Implementation

_SERVER: Final = "trio-mcp/server"
"""Key in ``_meta`` of a saved response: a hash of the server's address or command. It is hashed because these may
contain secrets."""
_EXPIRES: Final = "trio-mcp/expires"
"""Key in ``_meta`` of a saved response: the time at which its ``ttlMs`` ends, in seconds since 1970."""

Discovered: TypeAlias = tuple[DiscoverResult, float | None]
"""A discovery response, and the time at which it expires, in seconds since 1970; `None` if the server gave no time to
live."""


@frozen
class Prior:
    """An earlier response to ``server/discover``, after it was read and checked."""

    result: DiscoverResult
    revision: Revision
    """The newest revision in the response that this client supports."""
    info: Implementation | None
    server: str | None
    """Hash of the server's address or command; `None` if neither is known."""
    expires: float | None

    @property
    def is_fresh(self) -> bool:
        """True while the response may still be used: its time to live (``ttlMs``) hasn't passed yet."""
        return self.expires is None or time.time() < self.expires

    def check_server(self, server: str | None) -> None:
        """Raise `ValueError` unless the response comes from ``server``, given by its address or command."""
        if server is not None and self.server is not None and self.server != _hashed(server):
            raise ValueError(
                "prior= comes from another server, because its address or command differs: "
                "pass the Client.discovery of a client of this server"
            )


def read_prior(data: Any) -> Prior:
    """Read a discovery response: either the saved `Client.discovery` of an earlier client, or a plain result of
    ``server/discover``.

    Raises `ValueError` for anything else, and if the response has no modern revision that the client supports.
    """
    if not isinstance(data, Mapping):
        # Raise ValueError and not TypeError, because the data in the user's file is wrong, not the program.
        raise ValueError(f"prior= must be the Client.discovery of an earlier client, not {data!r:.40}")  # noqa: TRY004
    try:
        result = structure(dict(cast("Mapping[str, Any]", data)), DiscoverResult)
        meta = result.meta or {}
        info = None if (given := meta.get(SERVER_INFO)) is None else structure(given, Implementation)
    except ValueError as error:
        raise ValueError(f"prior= isn't a response to server/discover: {error}") from None
    server, expires = meta.get(_SERVER), meta.get(_EXPIRES)
    if not (server is None or isinstance(server, str)):
        raise ValueError(f"prior= isn't a response to server/discover: {_SERVER} must be a string")
    if expires is not None and not (type(expires) in (int, float) and 0 <= expires < 10**12):
        raise ValueError(f"prior= isn't a response to server/discover: {_EXPIRES} must be a number")
    common = [row for row in MODERN_REVISIONS if row.name in result.supported_versions]
    if not common:
        names = ", ".join(repr(name[:40]) for name in result.supported_versions[:10]) or "none"
        raise ValueError(f"prior= must name one of the revisions {[row.name for row in MODERN_REVISIONS]}, not {names}")
    return Prior(result, common[-1], info, server, expires)


def saved(discovered: Discovered, info: Implementation | None, server: str | None) -> JSONObject:
    """Return the discovery response of ``server`` as a JSON object that `read_prior` can read. ``server`` is an address
    or a command.

    ``info`` is the server's name and version, as far as the client could read them.
    """
    result, expires = discovered
    known = {
        SERVER_INFO: None if info is None else unstructure(info, LATEST_MODERN),
        _SERVER: None if server is None else _hashed(server),
        _EXPIRES: expires,
    }
    meta = {key: member for key, member in {**(result.meta or {}), **known}.items() if member is not None}
    return {**unstructure(result, LATEST_MODERN), "_meta": meta}


def _hashed(server: str) -> str:
    return sha256(server.encode("utf-8", "surrogateescape")).hexdigest()[:32]
