"""Prior: an earlier answer to ``server/discover``, with which a client opens without a round trip.

`read_prior` checks an answer that was saved, and `saved` makes one. Programs that neither save nor give one don't
import this module. `PriorClient` uses the answer.
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
"""Key in ``_meta`` of a saved answer: a hash of the address or command, which may have secrets in it."""
_EXPIRES: Final = "trio-mcp/expires"
"""Key in ``_meta`` of a saved answer: the end of its ``ttlMs``, in seconds since 1970."""

Discovered: TypeAlias = tuple[DiscoverResult, float | None]
"""An answer, and when it expires, in seconds since 1970; `None`: the server gave no time to live."""


@frozen
class Prior:
    """An earlier answer to ``server/discover``, checked."""

    result: DiscoverResult
    revision: Revision
    """The newest revision of the answer that this client speaks."""
    info: Implementation | None
    server: str | None
    """Hash of the address or command; `None`: not known."""
    expires: float | None

    @property
    def is_fresh(self) -> bool:
        """False once the time to live that the server gave is over."""
        return self.expires is None or time.time() < self.expires

    def check_server(self, server: str | None) -> None:
        """Raise `ValueError` for the answer of another server than ``server``, an address or a command."""
        if server is not None and self.server is not None and self.server != _hashed(server):
            raise ValueError(
                "prior= is the answer of another server: its address or command differs from this one; "
                "pass the Client.discovery of a client of this server"
            )


def read_prior(data: Any) -> Prior:
    """Read what `Client.discovery` gave, or a plain result of ``server/discover``. Raises `ValueError` for anything
    else, and for an answer without a modern revision of ours."""
    if not isinstance(data, Mapping):
        # No TypeError: the data of a file is bad, not the program.
        raise ValueError(f"prior= must be the Client.discovery of an earlier client, not {data!r:.40}")  # noqa: TRY004
    try:
        result = structure(dict(cast("Mapping[str, Any]", data)), DiscoverResult)
        meta = result.meta or {}
        info = None if (given := meta.get(SERVER_INFO)) is None else structure(given, Implementation)
    except ValueError as error:
        raise ValueError(f"prior= is no answer to server/discover: {error}") from None
    server, expires = meta.get(_SERVER), meta.get(_EXPIRES)
    if not (server is None or isinstance(server, str)):
        raise ValueError(f"prior= is no answer to server/discover: {_SERVER} must be a string")
    if expires is not None and not (type(expires) in (int, float) and 0 <= expires < 10**12):
        raise ValueError(f"prior= is no answer to server/discover: {_EXPIRES} must be a number")
    common = [row for row in MODERN_REVISIONS if row.name in result.supported_versions]
    if not common:
        names = ", ".join(repr(name[:40]) for name in result.supported_versions[:10]) or "none"
        raise ValueError(f"prior= must name one of {[row.name for row in MODERN_REVISIONS]}, and names {names}")
    return Prior(result, common[-1], info, server, expires)


def saved(discovered: Discovered, info: Implementation | None, server: str | None) -> JSONObject:
    """Return an answer of ``server``, an address or a command, as a JSON object for `read_prior`. ``info`` is what
    could be read of its description of itself."""
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
