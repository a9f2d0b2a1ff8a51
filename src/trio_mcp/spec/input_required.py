"""``InputRequiredResult`` of the modern revisions: a server asks by returning what it wants to know."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from .elicitation import ElicitResult
from .fields import JSONObject, wire
from .roots import ListRootsResult
from .sampling import CreateMessageResult

__all__ = ["InputRequest", "InputRequiredResult", "InputResponse", "asks_for_input"]


@wire
class InputRequest:
    """One question. ``params`` are plain, as those of any request; the method's row says what they hold."""

    method: Literal["sampling/createMessage", "elicitation/create", "roots/list"]
    params: JSONObject | None = None


InputResponse: TypeAlias = CreateMessageResult | ListRootsResult | ElicitResult
"""An answer. Which of the three it is depends on the question under the same key."""


@wire
class InputRequiredResult:
    """Ask the client, then let it retry with the answers and with ``request_state``, exactly as it came."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: JSONObject | None = None


def asks_for_input(result: object) -> bool:
    """Whether a plain result of a modern revision is an `InputRequiredResult`, well made or not."""
    return isinstance(result, dict) and cast("dict[str, Any]", result).get("resultType") == "input_required"
