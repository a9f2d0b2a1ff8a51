"""``InputRequiredResult`` of the modern revisions, with which a server returns requests to the client (elicitation,
sampling, roots) as the result."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast, get_args

from ...classes import value
from ..fields import JSONObject

Askable: TypeAlias = Literal["sampling/createMessage", "elicitation/create", "roots/list"]

ASKABLE: Final[tuple[str, ...]] = get_args(Askable)
"""The methods of requests that a server can return in an ``InputRequiredResult``."""


@value
class InputRequest:
    """A request to the client (elicitation, sampling, roots) in a result. ``params`` are plain data, as for any
    request. Their type is in the method's row."""

    method: Askable
    params: JSONObject | None = None


@value
class InputRequiredResult:
    """A result with requests to the client. The client calls again with the answers and with ``request_state``, exactly
    as received."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: JSONObject | None = None


def capability_for(request: InputRequest) -> tuple[str, ...]:
    """Return the capabilities that a client must have declared to get this input request (2026-07-28 sampling,
    elicitation and roots, Capabilities)."""
    params = request.params or {}
    match request.method:
        case "roots/list":
            return ("roots",)
        case "elicitation/create":
            return for_elicitation("url" if params.get("mode") == "url" else "form")
        case "sampling/createMessage":
            tools = "tools" in params or "toolChoice" in params
            return for_sampling(tools=tools, context=params.get("includeContext"))


_FOR_SAMPLING: Final = {
    (False, False): ("sampling",),
    (True, False): ("sampling", "sampling.tools"),
    (False, True): ("sampling", "sampling.context"),
    (True, True): ("sampling", "sampling.tools", "sampling.context"),
}


def for_elicitation(mode: Literal["form", "url"]) -> tuple[str, ...]:
    """Return the client capabilities that elicitation in this ``mode`` requires, the whole capability before its
    part."""
    return "elicitation", f"elicitation.{mode}"


def for_sampling(*, tools: bool, context: object) -> tuple[str, ...]:
    """Return the client capabilities that sampling requires, with ``tools`` and the ``context`` of
    ``includeContext``."""
    has_context = context in ("thisServer", "allServers")  # "none" is always allowed
    return _FOR_SAMPLING[tools, has_context]


def asks_for_input(result: object) -> bool:
    """Return true if a plain result of a modern revision is an `InputRequiredResult`, valid or not."""
    return isinstance(result, dict) and cast("dict[str, Any]", result).get("resultType") == "input_required"
