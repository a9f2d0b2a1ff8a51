"""`InputRequiredResult` (modern revisions): the server's result contains requests to the client (elicitation, sampling,
roots), and the client then calls again with the answers."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast, get_args

from ...classes import value
from ..fields import JSONObject

Askable: TypeAlias = Literal["sampling/createMessage", "elicitation/create", "roots/list"]

ASKABLE: Final[tuple[str, ...]] = get_args(Askable)
"""The methods of requests that a server can return in an ``InputRequiredResult``."""


@value
class InputRequest:
    """A request to the client (elicitation, sampling, roots) inside an `InputRequiredResult`.

    ``params`` are JSON data of the parameter type that the table of methods lists for ``method``.
    """

    method: Askable
    """Method of the request, such as ``elicitation/create``."""
    params: JSONObject | None = None
    """Parameters of the request as JSON data; `None` if the request has no parameters."""


@value
class InputRequiredResult:
    """A result that requests input from the client.

    The client calls again with the answers, and with ``request_state`` unchanged.
    """

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: JSONObject | None = None


def capability_for(request: InputRequest) -> tuple[str, ...]:
    """Return the capabilities that a client must have declared for an input request.

    (2026-07-28 sampling, elicitation and roots, Capabilities.)
    """
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
    """Return the client capabilities that elicitation in ``mode`` requires, such as ``elicitation`` and
    ``elicitation.url``."""
    return "elicitation", f"elicitation.{mode}"


def for_sampling(*, tools: bool, context: object) -> tuple[str, ...]:
    """Return the client capabilities that a sampling request requires.

    They depend on its ``tools`` and its ``context`` (``includeContext``).
    """
    has_context = context in ("thisServer", "allServers")  # "none" is always allowed
    return _FOR_SAMPLING[tools, has_context]


def asks_for_input(result: object) -> bool:
    """Return true if ``result``, JSON data in a modern protocol revision, is an `InputRequiredResult`.

    This includes invalid ones.
    """
    return isinstance(result, dict) and cast("dict[str, Any]", result).get("resultType") == "input_required"
