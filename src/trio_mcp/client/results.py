"""Results of a server: asked for in as many rounds as the server wants, checked and structured.

OutputSchemas are those of the tools that a server has listed: a client SHOULD validate structured results (2025-11-25
and 2026-07-28 tools, Output Schema). The server isn't trusted: schemas that are large or have many patterns aren't
checked, nor are values beyond the bounds of `SchemaValidator`.

InputRounds are multi round-trip requests, the client's side (2026-07-28 basic, Multi Round-Trip Requests): a modern
server answers by asking, and is called again with the answers. `prepared` checks the questions of a result, or of a
task, before any handler runs.
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
from .options import ClientSettings

if TYPE_CHECKING:
    from .cache import Change


T = TypeVar("T")

_MOST_FAULTS: Final = 100


class FaultLog:
    """The parts of a server's results that the client left out or replaced because it can't read them."""

    def __init__(self) -> None:
        self._logged = BoundedDict[tuple[str, str], None](_MOST_FAULTS)

    def __call__(self, method: str, faults: str) -> None:
        """Log the ``faults`` of a result once."""
        if (method, faults) not in self._logged:
            self._logged[method, faults] = None
            log_faults(method, faults)


def structured(method: str, result: Any, result_type: type[T], faults: FaultLog) -> T:
    """Return ``result`` as a ``result_type``, without the parts that can't be read, which go to ``faults``. Raises
    `ProtocolViolation` if nothing can be made of ``result``."""
    return result if result_type is dict else structure_result(method, result, result_type, faults)


def check_result_type(method: str, result: Any) -> None:
    """Raise `ProtocolViolation` for a plain result of a modern revision that is not complete (2026-07-28 basic,
    ResultType: absent means complete, anything unrecognised is invalid)."""
    kind = as_object(result).get("resultType", "complete")
    if kind == "input_required":
        raise ProtocolViolation(f"{method}: the server asks for input, which this method has no place for")
    if kind != "complete":
        raise ProtocolViolation(f"{method}: the server answered with the unknown result type {str(kind)[:100]!r}")


@frozen
class Completed:
    """The last result of a call."""

    result: Any
    """Plain data."""
    rounds: int
    """Number of requests sent. After more than one request the result depends on the answers given in between, so the
    result is not kept for other calls."""
    received: float = -inf
    """Time on trio's clock when the result was read, which may be long before the end of the callbacks that the call
    waited for; given for cacheable methods in modern revisions."""


class InputRounds:
    """Sends requests, and answers the questions that the server asks before the result of each.

    All state of a call lives in its own `request`: answers and ``requestState`` of a call never meet another call.
    """

    def __init__(self, outbound: Outbound, answers: Answers, settings: ClientSettings) -> None:
        self._outbound = outbound
        self._answers = answers
        self._settings = settings

    async def result(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        *,
        of_any_type: bool = False,
    ) -> Any:
        """Send a request as `request` does, and return its result alone."""
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
        """Send a request of a modern revision as `Connection.request`, in as many rounds as the server wants, up to
        ``max_rounds``.

        Each round has an id and a progress token of its own and is otherwise the same request, with the answers and the
        exact ``requestState`` of the round before. The handlers for the questions run in tasks of this call, all at
        once. The first handler that fails cancels the others and ends the call: the exception leaves unchanged, since
        ``inputResponses`` have no place for an error and a missing answer would be asked for again.

        Leaving the call between two rounds, for any reason, tells the server once: see `Outbound.round_trips`, and
        `Outbound.request` for ``cancel_task`` and ``tells_deadline``. With ``cancel_task`` the last result may be that
        of a task; ``of_any_type``: extensions have results of other types. Raises `ProtocolViolation` when the server
        asks a question that is not allowed, too many questions at once, or too often.
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
                if rounds > self._settings.max_rounds:
                    raise ProtocolViolation(f"{method}: the server asked more than {rounds - 1} times for input")
                with answering(params.get("_meta") or {}):
                    params = {**settled, **await self._answered(method, result, revision, trips)}
                rounds += 1

    async def _answered(self, method: str, result: Any, revision: Revision, trips: RoundTrips) -> JSONObject:
        """Return the members that the next request has beside the parameters of the first."""
        try:
            asked = structure(result, InputRequiredResult)
        except ValueError as error:
            raise ProtocolViolation(
                f"{method}: the server asks for input in a way that makes no sense: {error}"
            ) from None
        more: JSONObject = {}
        if asked.request_state is not None:
            more["requestState"] = asked.request_state
        if asked.input_requests is not None:
            most = self._settings.max_input_requests
            answers = prepared(self._answers, method, asked.input_requests, revision, most)
            with self._outbound.while_connected():
                # Leaving the call tells the server at once, instead of after the cleanup of the last handler.
                given = await run_together(list(answers.values()), trips.cancel)
                more["inputResponses"] = dict(zip(answers, given, strict=True))
        if not more:
            # mrtr, Server Requirements: MUST include at least one of the two.
            raise ProtocolViolation(f"{method}: the server asks for input, but neither names any nor has any state")
        return more


AnswerQuestion: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler for one question, and gives its answer, plain data."""


def prepared(
    answers: Answers,
    method: str,
    questions: Mapping[str, InputRequest],
    revision: Revision,
    limit: int,
    *,
    of_task: bool = False,
) -> dict[str, AnswerQuestion]:
    """Return what answers each of the ``questions``, which came in a result of ``method``, from a task if ``of_task``.
    All are checked before any handler runs, so that no user is asked for nothing: raises `ProtocolViolation` for a
    question that is not allowed, and for more than ``limit``, and `AnsweredLater`."""
    if len(questions) > limit:
        raise ProtocolViolation(f"{method}: the server asks {len(questions)} questions at once")
    try:
        return {
            key: partial(_given, answers.prepare(each.method, each.params, revision, key, of_task=of_task), revision)
            for key, each in questions.items()
        }
    except AnsweredLater:
        raise  # the server may ask, and we are the ones who cannot answer
    except CodedError as error:
        # mrtr, Server Requirements: MUST NOT send requests that the client did not declare.
        raise ProtocolViolation(f"{method}: the server asks for input that we cannot give: {error}") from None


async def _given(answer: Callable[[], Awaitable[Any]], revision: Revision) -> Any:
    return unstructure(await answer(), revision)


logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 8 * 1024 * 1024
"""Bound of all schemas, about."""
_PARTS: Final = 2000
_CHARACTERS: Final = 50_000
_LEVELS: Final = 64
_MOST_COMPILED: Final = 20
"""Compiled schemas: those of the tools that were called last."""
_MOST_PATTERNS: Final = 20
_MOST_OF_PATTERN: Final = 256 * 1024
_LONGEST_FAULT: Final = 500


def tools_in(page: object) -> list[JSONObject]:
    """Return the tools in a page of a list, without what is no object."""
    tools: Any = as_object(page).get("tools")
    return [each for each in cast("list[Any]", tools) if isinstance(each, dict)] if isinstance(tools, list) else []


class OutputSchemas:
    """The output schemas of tools, as far as they can be checked."""

    def __init__(self) -> None:
        self.known: dict[str, JSONObject] = {}
        """The schemas by the names of their tools."""
        self._free_bytes = _MOST_BYTES
        self._checks: BoundedDict[str, _Check] = BoundedDict(_MOST_COMPILED)
        self._logged: set[str] = set()

    def changed(self, change: Change) -> None:
        """Forget all schemas after a change of the tools."""
        if change.kind == "tools":
            self.known.clear()
            self._checks.clear()
            self._logged.clear()
            self._free_bytes = _MOST_BYTES

    def add_page(self, page: object) -> None:
        """Take the schemas of a page of ``tools/list``, a result as JSON data."""
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
        """Return the ``result`` of a tool, with `CallToolResult.schema_error` if it doesn't fit. The first such result
        of a tool is logged."""
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
"""Returns the fault of a value; `None` if there is none, or the value isn't checked."""


def _check_of(schema: JSONObject) -> _Check:
    from ..protocol.schema_growth import objects_in  # late: only tools with output schemas need these
    from ..protocol.schema_validator import TOO_LARGE, SchemaValidator

    named = [node.get("patternProperties") for node in objects_in(schema)]
    patterns = sum(len(cast("JSONObject", each)) for each in named if isinstance(each, dict))
    patterns += sum("pattern" in node for node in objects_in(schema))
    if patterns > _MOST_PATTERNS:
        return lambda value: None
    try:
        validator = SchemaValidator(schema, pattern_limit=_MOST_OF_PATTERN)
    except ValueError as error:
        # A pattern may be too large for us, and fine for others.
        unusable = None if patterns else f"the output schema is unusable: {error}"[:_LONGEST_FAULT]
        return lambda value: unusable

    def check(value: Any) -> str | None:
        fault = validator.faults(value)
        if fault is None or fault.startswith(TOO_LARGE):
            return None
        return "there is no structured content" if value is None else clean(fault[:_LONGEST_FAULT])

    return check
