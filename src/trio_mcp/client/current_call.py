"""`current_call` returns the client's call that a handler or callback belongs to. `CallContexts` determines this call.

A modern server sends its requests during a call, so the handlers run in tasks of the caller. A legacy server sends
requests and log messages separately. Over HTTP, each comes in the response to its call. On other transports, a message
belongs to the call in progress if there is exactly one. Otherwise the handler runs without context variables, because
the code that opened the client may have acted for another user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar, cast
from weakref import WeakKeyDictionary

from ..classes import frozen, show_fields
from ..concurrency.contexts import contextmanager, in_context
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
    """Handlers for a single call: keyword arguments of `Client.call_tool` that replace the client's handlers.

    The handlers have the same form as in `ClientSettings`.
    """

    sampling: SamplingHandler
    """Handler that answers ``sampling/createMessage``."""
    elicitation: ElicitationHandler
    """Handler that lets the user fill in a form."""
    elicitation_url: UrlElicitationHandler
    """Handler that asks the user to visit a URL."""
    roots: Sequence[Root] | RootsHandler
    """The roots of the client, or a function that returns the roots."""
    on_log: Callable[[LogParams], Any]
    """Callback for each log message of the call, used even if the client itself has no callback for log messages."""


@frozen
class CurrentCall:
    """The client's call that a handler or callback belongs to: see `current_call`."""

    method: str
    """The method of the request: ``tools/call``, for example."""
    name: str
    """The name of the tool or prompt, or the URI of the resource; empty for any other request."""
    arguments: Mapping[str, Any]
    """The arguments of the tool or prompt; empty for any other request."""
    value: Any = None
    """The ``value=`` that was passed to the call; `None` if no value was passed."""


CallRecord: TypeAlias = tuple[str, JSONObject, Any, CallHandlers]
"""The data of a client's call: its method, its parameters, the ``value=`` passed to it, and the handlers for this
call."""

call_variable: Final[ContextVar[CallRecord | None]] = ContextVar("trio_mcp.current_call", default=None)
"""Context variable with the client's call that the current task makes, or that the current handler belongs to."""


def current_call() -> CurrentCall | None:
    """Return the client's call that this handler or callback belongs to. Returns `None` if the call is unknown, and
    outside of handlers.

    Use it in handlers for sampling, elicitation and roots, and in callbacks for progress and logs. It also works in
    their child tasks and threads. If your handlers act for several users, call it first, and refuse requests that
    belong to no call.
    """
    made = call_variable.get()
    if made is None:
        return None
    method, params, value, _ = made
    return CurrentCall(method, params.get("name") or params.get("uri") or "", params.get("arguments") or {}, value)


@contextmanager
def variable_set(variable: ContextVar[T], value: T) -> Generator[None]:
    """Give a context variable the ``value`` inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def check_handlers(method: Callable[..., Any], handlers: CallHandlers, settings: ClientSettings) -> None:
    """Check the ``handlers`` that were passed to a single call of ``method``.

    Raises `TypeError` if a handler's name is unknown, and `ValueError` if the client hasn't declared the handler's
    capability.
    """
    name = method.__name__
    check_keywords(method, handlers, f"Client.{name}")
    for kind in handlers:
        if kind != "on_log" and getattr(settings, kind) is None:
            raise ValueError(
                f"{name}({kind}=...) needs a client that declares {kind}: pass {kind}=... when you open the client"
            )


_NEVER_SET: Final = object()


class CallContexts:
    """The context variables with which a client's handlers and callbacks run.

    ``names_calls``: true if the transport reports which call's response contained a message.
    """

    def __init__(self, *, names_calls: bool = False) -> None:
        self._names_calls = names_calls
        self._of_opener = copy_context()
        self.connection: Connection | None = None
        """The connection over which the calls are sent; `None` before the connection exists."""
        self._of_questions = WeakKeyDictionary[Any, Context]()
        self._of_tasks: dict[str, list[Context]] = {}

    def caller_of(self, params: JSONObject) -> Context | None:
        """Return the context variables of the client's call that a message of the server belongs to; `None` if the call
        is unknown.

        ``params`` are the message's parameters. Don't change the returned context. Must be called in the reader task,
        when the message has just arrived.
        """
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
        """Return the client's call that a message of the server belongs to; `None` if the call is unknown.

        Must be called in the reader task, when the message has just arrived.
        """
        caller = self.caller_of(params)
        return None if caller is None else caller.get(call_variable)

    @contextmanager
    def waiting_for(self, task_id: str) -> Generator[None]:
        """Inside the block, the current call waits for the server's MCP task ``task_id``. Messages of the server about
        this task then belong to the call."""
        waiting, here = self._of_tasks.setdefault(task_id, []), copy_context()
        waiting.append(here)
        try:
            yield
        finally:
            waiting.remove(here)
            if not waiting:
                del self._of_tasks[task_id]

    def record_caller(self, question: InboundRequest) -> None:
        """Record which of the client's calls ``question`` belongs to. The question is a server's request (elicitation,
        sampling, roots) that has just arrived."""
        if (caller := self.caller_of(question.params)) is not None:
            self._of_questions[question] = caller.copy()

    def answering(self, question: InboundRequest, answer: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Return a function that answers ``question``, a request of the server. The function uses the context variables
        of the client's call that the request belongs to."""
        context = self.copy_variables_to(self._of_questions.pop(question, None) or Context())
        return lambda: in_context(context, answer())

    def copy_variables_to(self, context: Context) -> Context:
        """Copy to ``context`` the context variables that the connection has set in this task since the client was
        opened.

        These are the server's share of the log, the request that is being answered, and the trace of that request.
        """
        for variable, value in copy_context().items():
            if self._of_opener.get(variable, _NEVER_SET) is not value:
                context.run(variable.set, value)
        return context
