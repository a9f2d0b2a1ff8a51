"""Results of a server: sends a request as often as the server requires input, then validates the result and converts it
to a class.

OutputSchemas are the output schemas of the tools that a server has listed: a client SHOULD validate structured results
(2025-11-25 and 2026-07-28 tools, Output Schema). The server isn't trusted: schemas that are large or have many patterns
aren't checked, nor are values beyond the limits of `SchemaValidator`.

InputRounds implement multi round-trip requests on the client's side (2026-07-28 basic, Multi Round-Trip Requests): a
modern server answers with input requests, and gets the request again with the answers. `prepared` checks the input
requests of a result, or of a task, before any handler runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import attrs

from ..classes import frozen
from ..concurrency.bounded import BoundedDict
from ..concurrency.nurseries import run_together
from ..jsonrpc.errors import CodedError, ProtocolViolation, clean
from ..jsonrpc.sizes import is_small
from ..protocol.converters import log_faults, structure, structure_result, unstructure
from ..protocol.fields import JSONObject, as_object
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest, InputRequiredResult
from ..protocol.types.tools import CallToolResult, created_id
from ..runtime.calls import OnProgress, RoundTrips
from ..runtime.outbound import Outbound, answering
from .answers import AnsweredLater, Answers

if TYPE_CHECKING:
    from .cache import Change


T = TypeVar("T")

_MOST_FAULTS: Final = 100


class FaultLog:
    """Logs which parts of a server's results the client left out or replaced, because the client couldn't read them."""

    def __init__(self) -> None:
        self._logged = BoundedDict[tuple[str, str], None](_MOST_FAULTS)

    def __call__(self, method: str, faults: str) -> None:
        """Log the ``faults`` in a result of ``method``. If these faults were logged before, do nothing."""
        if (method, faults) not in self._logged:
            self._logged[method, faults] = None
            log_faults(method, faults)


def structured(method: str, result: Any, result_type: type[T], faults: FaultLog) -> T:
    """Convert ``result``, plain data from the server, to an object of the class ``result_type``.

    Parts that can't be read are left out, and passed to ``faults``. Raises `ProtocolViolation` if ``result`` is
    unusable.
    """
    return result if result_type is dict else structure_result(method, result, result_type, faults)


def check_result_type(method: str, result: Any) -> None:
    """Raise `ProtocolViolation` unless a result has the result type ``complete``, as in modern protocol revisions.

    A result without a result type is complete, and an unknown result type is invalid (2026-07-28 basic, ResultType).
    """
    kind = as_object(result).get("resultType", "complete")
    if kind == "input_required":
        raise ProtocolViolation(f"{method}: the server requires input, which this method doesn't allow")
    if kind != "complete":
        raise ProtocolViolation(f"{method}: the server answered with the unknown result type {str(kind)[:100]!r}")


@frozen
class Completed:
    """The final result of a request, after all requested input was sent."""

    result: Any
    """The result, as plain data."""
    rounds: int
    """How many requests were sent for the result. If there were several, the result depends on the answers that were
    sent, so it isn't cached."""
    received: float = -inf
    """The time at which the result was read, on trio's clock. The call may return much later, because it waits for
    callbacks. Set only for cacheable methods in modern revisions."""


class InputRounds:
    """Sends requests in a modern protocol revision. If the server requires input (sampling, elicitation, roots), sends
    the request again with the answers.

    All state of a call is local to its own `request`: answers and ``requestState`` of one call never reach another
    call.
    """

    def __init__(self, outbound: Outbound, answers: Answers) -> None:
        self._outbound = outbound
        self._answers = answers

    async def result(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        *,
        of_any_type: bool = False,
    ) -> Any:
        """Send a request as `request` does, but return only the request's result."""
        return (await self.request(method, params, revision, on_progress, of_any_type=of_any_type)).result

    async def request(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        cancel_task: Callable[[str], None] | None = None,
        *,
        tells_deadline: bool = True,
        of_any_type: bool = False,
    ) -> Completed:
        """Send a request in a modern protocol revision, as `Connection.request` does.

        When the server requires input, send the request again with the answers, up to ``max_rounds`` times.

        Each attempt has its own id and progress token. Otherwise it is the same request, with the answers and the exact
        ``requestState`` of the previous attempt. The handlers for the input requests run concurrently in tasks of this
        call. If one fails, the others are cancelled and its exception propagates unchanged: ``inputResponses`` can't
        express errors, and the server would request a missing answer again.

        If the call is left between two attempts, the server is notified once: see `Outbound.round_trips`.

        Args:
            cancel_task: See `Outbound.request`. If given, the last result may be a task.
            tells_deadline: See `Outbound.request`.
            of_any_type: Accept results of any type, as extensions have.

        Raises:
            ProtocolViolation: The server sends an input request that isn't allowed, too many at once, or too often.
        """
        settled = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
        with self._outbound.round_trips() as trips:
            rounds = 1
            while True:
                result = await self._outbound.request(
                    method,
                    params or None,
                    revision,
                    on_progress,
                    trips=trips,
                    cancel_task=cancel_task,
                    tells_deadline=tells_deadline,
                )
                if trips.asked is None:
                    if not of_any_type and (cancel_task is None or created_id(result, is_flat=True) is None):
                        check_result_type(method, result)
                    return Completed(result, rounds, trips.received)
                if rounds > self._answers.settings.max_rounds:
                    raise ProtocolViolation(
                        f"{method}: the server required input more than {rounds - 1} times (max_rounds)"
                    )
                with answering(params.get("_meta") or {}):
                    params = {**settled, **await self._answered(method, result, revision, trips)}
                rounds += 1

    async def _answered(self, method: str, result: Any, revision: Revision, trips: RoundTrips) -> JSONObject:
        """Answer the requests for input in ``result``. Returns the parameters to add when the client sends its own
        request again."""
        try:
            asked = structure(result, InputRequiredResult)
        except ValueError as error:
            raise ProtocolViolation(
                f"{method}: the server requires input, but its result is malformed: {error}"
            ) from None
        more: JSONObject = {}
        if asked.request_state is not None:
            more["requestState"] = asked.request_state
        if asked.input_requests is not None:
            answers = prepared(self._answers, method, asked.input_requests, revision)
            with self._outbound.while_connected():
                # If the call is cancelled, notify the server at once, not after the cleanup of the last handler.
                given = await run_together(list(answers.values()), trips.cancel)
                more["inputResponses"] = dict(zip(answers, given, strict=True))
        if not more:
            # By MCP 2026-07-28 (mrtr page), the result MUST include inputRequests, requestState or both.
            raise ProtocolViolation(
                f"{method}: the server requires input, but sent neither inputRequests nor requestState"
            )
        return more


AnswerQuestion: TypeAlias = Callable[[], Awaitable[Any]]
"""A function that runs the handler for one request of the server, and returns the answer as plain data."""


def prepared(
    answers: Answers,
    method: str,
    questions: Mapping[str, InputRequest],
    revision: Revision,
    *,
    of_task: bool = False,
) -> dict[str, AnswerQuestion]:
    """Return a function for each of the server's requests in ``questions``. Calling the function runs the handler that
    answers the request.

    The requests arrived in a result of ``method``, or from a task if ``of_task``. All of them are checked first, so
    that no user answers in vain. Raises `ProtocolViolation` for a request that isn't allowed and for more
    requests than ``max_input_requests``, and `AnsweredLater`.
    """
    check_number(answers, method, questions)
    try:
        return {
            key: partial(_given, answers.prepare(each.method, each.params, revision, key, of_task=of_task), revision)
            for key, each in questions.items()
        }
    except AnsweredLater:
        raise  # this client declared the capability, but has no handler for the request
    except CodedError as error:
        # By MCP 2026-07-28 (mrtr page), servers MUST NOT send requests that the client did not declare.
        raise ProtocolViolation(f"{method}: the server requires input that this client cannot give: {error}") from None


def check_number(answers: Answers, method: str, questions: Mapping[str, InputRequest]) -> None:
    """Raise `ProtocolViolation` if a result of ``method`` has more ``questions`` than ``max_input_requests``."""
    limit = answers.settings.max_input_requests
    if len(questions) > limit:
        raise ProtocolViolation(
            f"{method}: the server sent {len(questions)} input requests at once, more than max_input_requests ({limit})"
        )


async def _given(answer: Callable[[], Awaitable[Any]], revision: Revision) -> Any:
    return unstructure(await answer(), revision)


logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 8 * 1024 * 1024
"""Approximate size limit, in bytes, for all stored output schemas together."""
_PARTS: Final = 2000
_CHARACTERS: Final = 50_000
_LEVELS: Final = 64
_MOST_COMPILED: Final = 20
"""How many compiled schemas the client keeps. These belong to the tools that were called last."""
_MOST_PATTERNS: Final = 20
_MOST_OF_PATTERN: Final = 256 * 1024
_LONGEST_FAULT: Final = 500


def tools_in(page: object) -> list[JSONObject]:
    """Return the tools on one page of ``tools/list``, without entries that aren't objects."""
    tools: Any = as_object(page).get("tools")
    return [each for each in cast("list[Any]", tools) if isinstance(each, dict)] if isinstance(tools, list) else []


class OutputSchemas:
    """The output schemas of a server's tools. Validates results of the tools, as far as the schemas can be checked."""

    def __init__(self) -> None:
        self.known: dict[str, JSONObject] = {}
        """The output schemas, by the names of their tools."""
        self._free_bytes = _MOST_BYTES
        self._checks: BoundedDict[str, _Check] = BoundedDict(_MOST_COMPILED)
        self._logged: set[str] = set()

    def changed(self, change: Change) -> None:
        """Drop all output schemas after the server's tools have changed."""
        if change.kind == "tools":
            self.known.clear()
            self._checks.clear()
            self._logged.clear()
            self._free_bytes = _MOST_BYTES

    def add_page(self, page: object) -> None:
        """Store the output schemas of one page of ``tools/list``, given as JSON data."""
        for tool in tools_in(page):
            name, schema = tool.get("name"), tool.get("outputSchema")
            if not isinstance(name, str) or self.known.get(name) == schema:
                continue
            self.known.pop(name, None)
            self._checks.pop(name, None)
            if isinstance(schema, dict) and is_small([name, schema], _PARTS, _CHARACTERS, _LEVELS):
                self._free_bytes -= len(name) + len(repr(cast("JSONObject", schema)))
                if self._free_bytes > 0:
                    self.known[name] = cast("JSONObject", schema)

    def checked(self, name: str, result: CallToolResult) -> CallToolResult:
        """Return the ``result`` of a tool. If it doesn't match the tool's output schema, set
        `CallToolResult.schema_error`.

        The first mismatch of each tool is logged.
        """
        if result.is_error or (schema := self.known.get(name)) is None:
            return result
        if name not in self._checks:
            self._checks[name] = _check_of(schema)
        if (fault := self._checks[name](result.structured_content)) is None:
            return result
        if name not in self._logged:
            self._logged.add(name)
            logger.warning("the result of tool %s doesn't fit its output schema: %s", clean(name[:200]), fault)
        return attrs.evolve(result, schema_error=fault)


_Check: TypeAlias = Callable[[Any], str | None]
"""A function that returns what is wrong with a value. It returns `None` if the value is valid or isn't checked."""


def _check_of(schema: JSONObject) -> _Check:
    from ..protocol.schema_growth import objects_in  # lazy import: only tools with output schemas need it
    from ..protocol.schema_validator import TOO_LARGE, SchemaValidator

    named = [node.get("patternProperties") for node in objects_in(schema)]
    patterns = sum(len(cast("JSONObject", each)) for each in named if isinstance(each, dict))
    patterns += sum("pattern" in node for node in objects_in(schema))
    if patterns > _MOST_PATTERNS:
        return lambda value: None
    try:
        validator = SchemaValidator(schema, pattern_limit=_MOST_OF_PATTERN)
    except ValueError as error:
        # A regular expression in the schema may be too complex for this client, but valid for other clients.
        unusable = None if patterns else f"the output schema is unusable: {error}"[:_LONGEST_FAULT]
        return lambda value: unusable

    def check(value: Any) -> str | None:
        fault = validator.faults(value)
        if fault is None or fault.startswith(TOO_LARGE):
            return None
        return "there is no structured content" if value is None else clean(fault[:_LONGEST_FAULT])

    return check
