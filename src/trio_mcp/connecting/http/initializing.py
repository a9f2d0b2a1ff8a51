"""session_of reads the session that a server has opened out of the answer to ``initialize``."""

from __future__ import annotations

from typing import Any, cast

from ...jsonrpc.codec import decode
from ...jsonrpc.messages import Response
from ...protocol.fields import JSONObject
from ...protocol.revisions import REVISIONS
from .sessions import Session


def session_of(line: bytes, session_id: str | None) -> Session | None:
    """Return the session with ``session_id``, `None` where the server keeps none, and the revision that ``line`` names;
    `None` for a line that names no revision of ours. Raises `HTTPError` for an id that no header can have."""
    message = decode(line)
    if not isinstance(message, Response):
        return None
    result: Any = message.result
    version = cast("JSONObject", result).get("protocolVersion") if isinstance(result, dict) else None
    return Session(session_id, version) if isinstance(version, str) and version in REVISIONS else None
