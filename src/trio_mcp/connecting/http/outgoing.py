"""Outgoing: a message of ours, as far as HTTP has to know."""

from __future__ import annotations

from typing import Any, Final, cast

from ...jsonrpc.codec import decode_value
from ...jsonrpc.messages import RequestId
from ...jsonrpc.values import value
from ...protocol.fields import JSONObject
from ...protocol.meta import PROTOCOL_VERSION

_NOTHING: Final[JSONObject] = {}


@value
class Outgoing:
    """A message of ours, with the ``line`` that is the body of its POST, without the newline."""

    line: bytes
    id: RequestId | None
    method: str | None
    """`None`: the message is a reply."""
    params: JSONObject

    @classmethod
    def of(cls, line: bytes) -> Outgoing:
        """Return the message in ``line``, which we have written ourselves."""
        data: JSONObject = decode_value(line)
        return cls(line, data.get("id"), data.get("method"), cast("Any", data.get("params")) or _NOTHING)

    @property
    def is_request(self) -> bool:
        """True for a request, which is answered."""
        return self.method is not None and self.id is not None

    @property
    def is_notification(self) -> bool:
        """True for a notification, for whose delivery nobody waits."""
        return self.method is not None and self.id is None

    @property
    def version(self) -> str | None:
        """The modern revision that the message names in its ``_meta``; `None` for messages of the legacy era."""
        version = self.params.get("_meta", _NOTHING).get(PROTOCOL_VERSION)
        return None if self.method == "initialize" else version
