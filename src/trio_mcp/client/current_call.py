"""current_call: the call of a client that a handler or a callback serves. CallContexts finds out which call that is.

A modern server asks by answering a call, so the handlers run in tasks of the caller. A legacy server sends questions
and logs as messages of their own. Over HTTP each comes in the answer to its call. On other transports each belongs to
the only call in progress, if there is just one. Anything else runs without context variables: the code that opened the
client may have acted for another user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar, cast
from weakref import WeakKeyDictionary

from ..classes import frozen, show_fields
from ..concurrency.contexts import contextmanager
from ..concurrency.coroutines import in_context
from ..concurrency.misuse import check_keywords
from ..protocol.fields import JSONObject, as_object
from ..protocol.meta import RELATED_TASK

if TYPE_CHECKING:
    from ..protocol.types.notifications import LogParams
    from ..protocol.types.sampling import Root
    from ..runtime.connection import Connection
    from ..state.requests import InboundRequest
    from .options import ClientSettings, ElicitationHandler, RootsHandler, SamplingHandler, UrlElicitationHandler

T = TypeVar("T")


@show_fields
class CallHandlers(TypedDict, total=False):
    """The handlers that a single call may have of its own, as keyword arguments of `Client.call_tool`. Each takes the
    place of the handler that the client was opened with, and has the same form: see `ClientSettings`."""

    sampling: SamplingHandler
    """Answers ``sampling/createMessage``."""
    elicitation: ElicitationHandler
    """Asks the user to fill in a form."""
    elicitation_url: UrlElicitationHandler
    """Asks the user to visit a URL."""
    roots: Sequence[Root] | RootsHandler
    """The roots, or a function that returns the roots."""
    on_log: Callable[[LogParams], Any]
    """Called for each log message of the call. The client need not have a callback for logs."""


@frozen
class CurrentCall:
    """The call that a handler or a callback serves: see `current_call`."""

    method: str
    """The method of the request: ``tools/call``, for example."""
    name: str
    """The name of the tool or prompt, or the URI of the resource; empty for any other request."""
    arguments: Mapping[str, Any]
    """The arguments of the tool or prompt; empty for any other request."""
    value: Any = None
    """The value that the caller gave (``value=``); `None` without one."""


CallRecord: TypeAlias = tuple[str, JSONObject, Any, CallHandlers]
"""A call: its method, its parameters, the value of the caller, and the handlers of its own."""

call_variable: Final[ContextVar[CallRecord | None]] = ContextVar("trio_mcp.current_call", default=None)
"""The call that is made or served here."""


def current_call() -> CurrentCall | None:
    """Return the call that is served here: in handlers for sampling, elicitation and roots, and in callbacks for
    progress and logs, their child tasks and threads included.

    `None` where the call cannot be known, and elsewhere. A handler that acts for one of several users looks here first,
    and refuses a question that belongs to no call.
    """
    made = call_variable.get()
    if made is None:
        return None
    method, params, value, _ = made
    return CurrentCall(method, params.get("name") or params.get("uri") or "", params.get("arguments") or {}, value)


@contextmanager
def as_current_call(call: CallRecord | None) -> Generator[None]:
    """Make ``call`` inside, if any."""
    token = call_variable.set(call)
    try:
        yield
    finally:
        call_variable.reset(token)


def check_handlers(method: Callable[..., Any], handlers: CallHandlers, settings: ClientSettings) -> None:
    """Raise `TypeError` for an unknown handler of a call by ``method`` of a client, and `ValueError` for one of a kind
    of question that the client has not declared."""
    name = method.__name__
    check_keywords(method, handlers, f"Client.{name}")
    for kind in handlers:
        if kind != "on_log" and getattr(settings, kind) is None:
            raise ValueError(
                f"{name}({kind}=...) needs a client that declares {kind}: open the client with {kind}=..., too"
            )


_NEVER_SET: Final = object()


class CallContexts:
    """The context variables with which the handlers and callbacks of a client run.

    ``names_calls``: the transport says in whose answer a message came.
    """

    def __init__(self, *, names_calls: bool = False) -> None:
        self._names_calls = names_calls
        self._of_opener = copy_context()
        self.connection: Connection | None = None
        """The connection with the calls; `None` before it is made."""
        self._of_questions = WeakKeyDictionary[Any, Context]()
        self._of_tasks: dict[str, list[Context]] = {}

    def caller_of(self, params: JSONObject) -> Context | None:
        """Return the context of the call that a message with ``params`` belongs to, which must not be changed; `None`
        if that cannot be known. To be called in the reader, when the message has arrived."""
        connection = self.connection
        if connection is None:
            return None
        meta: Any = params.get("_meta")
        if type(meta) is dict and RELATED_TASK in meta:
            return self._of_task(cast("JSONObject", meta)[RELATED_TASK])
        outbound = connection.outbound
        return outbound.caller_of(connection.related_request_id) if self._names_calls else outbound.only_caller()

    def _of_task(self, related: Any) -> Context | None:
        task_id: Any = as_object(related).get("taskId")
        waiting = self._of_tasks.get(task_id) if type(task_id) is str else None
        return waiting[-1] if waiting else None

    def call_of(self, params: JSONObject) -> CallRecord | None:
        """Return the call that a message belongs to; `None` if that cannot be known. As `caller_of`."""
        caller = self.caller_of(params)
        return None if caller is None else caller.get(call_variable)

    @contextmanager
    def waiting_for(self, task_id: str) -> Generator[None]:
        """Wait for a task of the server inside: its messages belong to this call."""
        waiting, here = self._of_tasks.setdefault(task_id, []), copy_context()
        waiting.append(here)
        try:
            yield
        finally:
            waiting.remove(here)
            if not waiting:
                del self._of_tasks[task_id]

    def record_caller(self, question: InboundRequest) -> None:
        """Find out which call a question belongs to, which has arrived."""
        if (caller := self.caller_of(question.params)) is not None:
            self._of_questions[question] = caller.copy()

    def answering(self, question: InboundRequest, answer: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Return a function that answers ``question`` with the context of its call."""
        context = self.copy_variables_to(self._of_questions.pop(question, None) or Context())
        return lambda: in_context(context, answer())

    def copy_variables_to(self, context: Context) -> Context:
        """Give ``context`` the variables that the connection has set in this task since the client was opened: the
        server's share of the log, the request that is answered, its trace."""
        for variable, value in copy_context().items():
            if self._of_opener.get(variable, _NEVER_SET) is not value:
                context.run(variable.set, value)
        return context
