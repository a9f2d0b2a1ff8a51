"""Untrusted data of clients, as the classes that handlers want; a user's answer to a question."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, get_args, is_typeddict

import attrs
import msgspec

from .. import protocol
from ..protocol.converters import structure
from ..protocol.fields import JSONObject
from ..protocol.plain_classes import convert, optional_fields
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities

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


_SPECIFICATION: Final = f"{protocol.__name__}."


def typed(data: Any, kind: type[T]) -> T:
    """Return JSON data as a ``kind``, strictly: members are named as on the wire in classes of the specification, and
    as the fields in all others. Raises `ValueError` when the data does not fit, and `TypeError` for a ``kind`` that no
    JSON data is."""
    try:
        return structure(data, kind) if _is_of_specification(kind) else convert(data, kind)
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def typed_text(text: str, kind: type[T]) -> T:
    """Return a JSON text as `typed` does; for an empty text the default of ``kind``, else `ValueError`."""
    if text:
        try:
            data = msgspec.json.decode(text)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        return typed(data, kind)
    if is_typeddict(kind):  # calling a TypedDict gives a plain dict without checks
        return typed({}, kind)
    try:
        return kind()
    except TypeError as error:
        raise ValueError(f"there is nothing to be read, and no default: {error}") from None


def _is_of_specification(kind: Any) -> bool:
    """Return whether ``kind`` is a class of the specification, or a list or the like of such."""
    if isinstance(kind, type) and attrs.has(kind):
        return kind.__module__.startswith(_SPECIFICATION)
    return any(map(_is_of_specification, get_args(kind)))
