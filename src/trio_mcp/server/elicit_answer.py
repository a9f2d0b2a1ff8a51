"""ElicitAnswer: what the user of a client did with a question."""

from __future__ import annotations

from typing import Literal, TypeVar

import attrs
import msgspec

from ..spec.fields import JSONObject

__all__ = ["ElicitAnswer"]

T = TypeVar("T")


@attrs.frozen
class ElicitAnswer:
    """What the user did with a question. ``content`` comes with ``accept`` only, and not for URLs."""

    action: Literal["accept", "decline", "cancel"]
    content: JSONObject | None = None

    def content_as(self, kind: type[T]) -> T | None:
        """The accepted form as a ``kind``; `None` when it was not accepted. Raises `ValueError` when the
        content does not fit."""
        if self.action != "accept":
            return None
        return msgspec.convert(self.content or {}, kind, strict=True)
