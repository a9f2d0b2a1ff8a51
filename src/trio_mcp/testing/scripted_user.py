"""ScriptedUser: the model, the user and the roots behind a client, controlled by a test.

`in_turn` makes a handler of scripted answers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict, Unpack

from ..client.answers import Answers
from ..client.options import ClientSettings, ElicitationHandler, RootsHandler, SamplingHandler, UrlElicitationHandler
from ..client.timeouts import CallTimeouts
from ..concurrency.fair_share import Caller
from ..concurrency.time_limits import Graces
from ..concurrency.workers import Workers
from ..jsonrpc.errors import CodedError, PeerError
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities
from ..protocol.types.sampling import Root
from ..runtime.limits import DEFAULT_LIMITS
from ..tasks.settings import TaskSettings


class UserOptions(TypedDict, total=False):
    """The handlers of a client, as every ``open_*`` takes them; `ClientSettings` documents them."""

    sampling: SamplingHandler
    sampling_tools: bool
    sampling_context: bool
    sampling_asks_user: bool
    elicitation: ElicitationHandler
    elicitation_url: UrlElicitationHandler
    roots: Sequence[Root] | RootsHandler
    question_tasks: TaskSettings | None


class ScriptedUser:
    """Answer as a client with these handlers would, at once and in the asking task. Plain handlers get no threads here,
    because a virtual clock would not wait for threads."""

    def __init__(self, **options: Unpack[UserOptions]) -> None:
        handlers: dict[str, Any] = {
            name: _in_this_task(option) if callable(option) else option for name, option in options.items()
        }
        # The answers that a bad client gives must be possible, too.
        self._answers = Answers(
            ClientSettings(**handlers),
            Workers(running=1, asking=1, abandoned=1).share(Caller(alone=True)),
            Graces(DEFAULT_LIMITS.cleanup_grace),
            CallTimeouts(math.inf),
            check_forms=False,
        )

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that a client with these handlers declares."""
        return self._answers.capabilities

    async def answer(self, method: str, params: JSONObject | None, revision: Revision) -> JSONObject:
        """Return the result as it would be sent. Raises `PeerError` when a handler refuses, and where there is no
        handler."""
        try:
            return unstructure(await self._answers.prepare(method, params, revision)(), revision)
        except CodedError as error:
            raise PeerError(error.code, error.message, error.data) from error


def _in_this_task(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(*question: Any) -> Any:
        given = handler(*question)
        return await given if inspect.isawaitable(given) else given

    return answer


def in_turn(*answers: Any) -> Callable[..., Awaitable[Any]]:
    """Return a handler that returns ``answers`` one after another, whatever the question, and raises answers that are
    exceptions.

    For the handlers of a client (``sampling``, ``elicitation``, ``elicitation_url``, ``roots``) and for those of a
    `RecordingContext`. A question beyond the last answer raises `AssertionError`.
    """
    left = list(answers)

    async def answer(*question: Any) -> Any:
        if not left:
            raise AssertionError(f"{len(answers)} answers were scripted, and one more was asked for: {question}")
        given = left.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    return answer
