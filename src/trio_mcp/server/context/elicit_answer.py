"""ElicitAnswer: a user's answer to a question; and the notification that the user is done at a URL."""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import attrs

from ...protocol.fields import JSONObject
from ...protocol.plain_classes import convert, optional_fields
from ...protocol.revisions import Revision
from ...protocol.types.lifecycle import ClientCapabilities

COMPLETE: Final = "notifications/elicitation/complete"

T = TypeVar("T")


@attrs.frozen
class ElicitAnswer:
    """A user's answer to a question. ``content`` comes with ``accept`` only, and not for URLs."""

    action: Literal["accept", "decline", "cancel"]
    content: JSONObject | None = None

    def content_as(self, kind: type[T]) -> T | None:
        """Return the accepted form as a ``kind``; `None` when the user did not accept.

        Fields that the user left out and that may be `None` are `None`. Raises `ValueError` when the content does
        not fit.
        """
        if self.action != "accept":
            return None
        content = self.content or {}
        return convert({**dict.fromkeys(optional_fields(kind)), **content}, kind)


def tells_completion(elicitation_id: str, revision: Revision, capabilities: ClientCapabilities) -> bool:
    """Return whether such a client is told that an elicitation is complete. Raises `ValueError` for an id that is empty
    or no text."""
    if not isinstance(elicitation_id, str) or not elicitation_id:  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
        raise ValueError(f"the id of a URL elicitation is a text that is not empty, not {elicitation_id!r}")
    return COMPLETE in revision.methods and capabilities.supports("elicitation.url")
