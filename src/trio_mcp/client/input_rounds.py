"""InputRounds: multi round-trip requests, the client's side (2026-07-28 basic, Multi Round-Trip Requests).

A modern server answers by asking, and is called again with the answers. `prepared` checks the questions of a
result, or of a task, before any handler runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, TypeAlias

from ..classes import frozen
from ..concurrency.nurseries import run_together
from ..jsonrpc.errors import CodedError, ProtocolViolation
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest, InputRequiredResult
from ..protocol.types.tasks import created_id
from ..runtime.calls import OnProgress, RoundTrips
from ..runtime.outbound import Outbound, answering
from .answers import Answers, NobodyAnswersHere
from .options import ClientSettings
from .results import check_result_type


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

    async def result(self, method: str, params: JSONObject, revision: Revision, on_progress: OnProgress | None) -> Any:
        """Send a request as `request` does, and return its result alone."""
        return (await self.request(method, params, revision, on_progress)).result

    async def request(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        cancel_task: Callable[[str], None] | None = None,
        *,
        tells_deadline: bool = True,
    ) -> Completed:
        """Send a request of a modern revision as `Connection.request`, in as many rounds as the server wants, up to
        ``max_rounds``.

        Each round has an id and a progress token of its own and is otherwise the same request, with the answers and the
        exact ``requestState`` of the round before. The handlers for the questions run in tasks of this call, all at
        once. The first handler that fails cancels the others and ends the call: the exception leaves unchanged, since
        ``inputResponses`` have no place for an error and a missing answer would be asked for again.

        Leaving the call between two rounds, for any reason, tells the server once: see `Outbound.round_trips`, and
        `Outbound.request` for ``cancel_task`` and ``tells_deadline``. With ``cancel_task`` the last result may be that
        of a task. Raises `ProtocolViolation` when the server asks a question that is not allowed, too many questions at
        once, or too often.
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
                    if cancel_task is None or created_id(result, is_flat=True) is None:
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
                given = await run_together(list(answers.values()), trips.leave)
                more["inputResponses"] = dict(zip(answers, given, strict=True))
        if not more:
            # mrtr, Server Requirements: MUST include at least one of the two.
            raise ProtocolViolation(f"{method}: the server asks for input, but neither names any nor has any state")
        return more


Give: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler for one question, and gives its answer, plain data."""


def prepared(
    answers: Answers,
    method: str,
    questions: Mapping[str, InputRequest],
    revision: Revision,
    most: int,
    *,
    of_task: bool = False,
) -> dict[str, Give]:
    """Return what answers each of the ``questions``, which came in a result of ``method``, from a task if ``of_task``.
    All are checked before any handler runs, so that no user is asked for nothing: raises `ProtocolViolation` for a
    question that is not allowed, and for more than ``most``, and `NobodyAnswersHere`."""
    if len(questions) > most:
        raise ProtocolViolation(f"{method}: the server asks {len(questions)} questions at once")
    try:
        return {
            key: _giving(answers.prepare(each.method, each.params, revision, key, of_task=of_task), revision)
            for key, each in questions.items()
        }
    except NobodyAnswersHere:
        raise  # the server may ask, and we are the ones who cannot answer
    except CodedError as error:
        # mrtr, Server Requirements: MUST NOT send requests that the client did not declare.
        raise ProtocolViolation(f"{method}: the server asks for input that we cannot give: {error}") from None


def _giving(answer: Callable[[], Awaitable[Any]], revision: Revision) -> Give:
    async def give() -> Any:
        return unstructure(await answer(), revision)

    return give
