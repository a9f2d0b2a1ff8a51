"""How a client answers the requests that its server sends (sampling, elicitation, roots), in modern and legacy
revisions.

`Answers` calls the handlers, `Turns` limits how many questions are answered concurrently, and `Relay` is the interface
to code that forwards questions to other clients, such as a proxy.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import attrs
import trio

from ..classes import define
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.time_limits import Graces
from ..concurrency.workers import WorkerShare, await_result, run_in_worker
from ..jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, CodedError
from ..protocol.converters import structure_params, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_MODERN, Revision
from ..protocol.types.elicitation import ElicitFormParams, ElicitParams, ElicitResult, check_form_schema
from ..protocol.types.input_required import ASKABLE, Askable, InputRequest, capability_for
from ..protocol.types.lifecycle import ClientCapabilities, Elicitation, Roots, Sampling, TasksCapability
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult, ListRootsResult
from ..protocol.types.tools import TASKS_EXTENSION
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .current_call import call_variable
from .options import ClientSettings
from .timeouts import CallTimeouts

T = TypeVar("T")

Answer: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler for one request of the server (sampling, elicitation, roots), and returns the handler's result as a
class of the specification."""


class AnsweredLater(CodedError):
    """Raised for a server's request outside of a background task, if this client has no handler for it, and
    `ClientSettings.answers_later` leaves such requests to another client.

    The server must then send the request in a task, so that another client can answer it later.
    """


class Relay(ABC):
    """A receiver of the server's notifications and requests, such as a proxy.

    The relay gets the requests (sampling, elicitation, roots) that the client declared to forward
    (`ClientSettings.forwards`).

    A proxy implements this for its upstream server, so that clients don't depend on proxies.
    """

    @abstractmethod
    def on_notification(self, event: NotificationReceived) -> None:
        """Receive a notification of the server as soon as it is read: before callbacks run, and before replies that
        arrive later are handled.

        Implementations must return quickly and must not raise.
        """

    @abstractmethod
    def on_question(self, request: InboundRequest) -> None:
        """Receive a request of the server (sampling, elicitation, roots) as soon as it is read.

        `ask` is called for the same request afterwards. Implementations must return quickly and must not raise.
        """

    @abstractmethod
    def ask(self, method: str, params: dict[str, Any], key: str | None) -> Awaitable[Any]:
        """Forward a server's request (sampling, elicitation, roots). Returns the request's result as plain
        data in the form of this client's protocol revision.

        A modern server sends requests during a call: they run in tasks of the call. A request of a legacy server runs
        in a task of its own. ``key`` is the key that a modern server gave the request; `None` for a legacy server.
        Raises `CodedError` to send an error reply.
        """


@define(eq=False)
class Answers:
    """Calls the client's handlers for sampling, elicitation and roots requests, at most ``max_questions`` handlers of
    one kind concurrently.

    Plain ``def`` handlers run in threads of ``workers``, with ``graces`` to finish after a cancel. The ``timeouts`` of
    calls are paused while the user answers, or while a request of the server waits for other handlers.
    """

    settings: ClientSettings
    _workers: WorkerShare
    _graces: Graces
    timeouts: CallTimeouts
    check_forms: bool = True
    _turns: dict[str, Turns] = attrs.field(init=False)
    relay: Relay | None = attrs.field(default=None, init=False)
    """Receives the server's requests (sampling, elicitation, roots) that the client declared to forward."""

    def __attrs_post_init__(self) -> None:
        self._turns = {
            kind: Turns(self.settings.max_questions, self.timeouts.user_is_asked)
            for kind in ("sampling/createMessage", "elicitation/create", "roots/list")
        }

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declares to a server with a modern protocol revision (2026-07-28 or later).

        They contain the kinds of requests that this client has a handler for, that another client answers later, or
        that are forwarded.
        """
        return self.capabilities_in(LATEST_MODERN)

    def capabilities_in(self, revision: Revision) -> ClientCapabilities:
        """Return the capabilities that the client declares to a server that uses the protocol ``revision``."""
        settings = self.settings
        if settings.forwards is not None:
            own = self._extensions_in(revision)
            if not own:
                return settings.forwards
            return attrs.evolve(settings.forwards, extensions={**(settings.forwards.extensions or {}), **own})
        here = self._of_handlers(revision)
        return here if settings.answers_later is None else _together(here, settings.answers_later)

    def _of_handlers(self, revision: Revision) -> ClientCapabilities:
        settings = self.settings
        sampling = elicitation = None
        if settings.sampling is not None:
            sampling = Sampling({} if settings.sampling_context else None, {} if settings.sampling_tools else None)
        if settings.elicitation is not None or settings.elicitation_url is not None:
            elicitation = Elicitation(
                {} if settings.elicitation is not None else None, {} if settings.elicitation_url is not None else None
            )
        roots = Roots(list_changed=True) if settings.roots is not None else None
        extensions = self._extensions_in(revision)
        if settings.tasks and revision.tasks == "extension":
            extensions[TASKS_EXTENSION] = {}
        requests: JSONObject = {}
        if sampling is not None:
            requests["sampling"] = {"createMessage": {}}
        if elicitation is not None:
            requests["elicitation"] = {"create": {}}
        tasks = TasksCapability({}, {}, requests) if settings.question_tasks is not None and requests else None
        return ClientCapabilities(
            roots=roots, sampling=sampling, elicitation=elicitation, tasks=tasks, extensions=extensions or None
        )

    def _extensions_in(self, revision: Revision) -> JSONObject:
        if not self.settings.extensions:
            return {}
        from ..protocol.extensions import declared_in  # lazy import: most clients have no extension

        return declared_in(revision, self.settings.extensions, "client")

    def prepare(
        self, method: str, params: Any, revision: Revision, key: str | None = None, *, of_task: bool = False
    ) -> Answer:
        """Return a function that answers a request of the server (sampling, elicitation, roots). No handler runs until
        that function is called.

        ``key`` identifies the request among the requests of its call, for a relay. ``of_task``: true if a task sent the
        request, so that another client may answer it later. Raises `CodedError` for an undeclared method (-32601), an
        undeclared part of a method such as a mode (-32602) and malformed parameters (-32602). Raises `AnsweredLater` if
        the server must send the request in a task.
        """
        settings = self.settings
        if settings.answers_later is not None and self._is_for_later(settings.answers_later, method, params):
            if not of_task:
                words = f"{method} is answered later by another client, so it may only be asked in a task"
                raise AnsweredLater(METHOD_NOT_FOUND, words, {"method": method})
            # Another client will answer this request of a task, so wait until the server withdraws it here.
            # Don't return an error: the server would take it for the answer.
            return trio.sleep_forever
        match method:
            case name if self.forwards(name):
                return self._forwarded(name, params, key)
            case "sampling/createMessage" if settings.sampling is not None:
                return self._sampling(settings.sampling, structure_params(params, CreateMessageParams, revision))
            case "elicitation/create" if settings.elicitation is not None or settings.elicitation_url is not None:
                kind = cast("type[ElicitParams]", ElicitParams)
                return self._elicitation(structure_params(params, kind, revision))
            case "roots/list" if settings.roots is not None:
                return self._roots
            case name:
                return self._of_extension(name, params, revision)

    def forwards(self, method: str) -> bool:
        """Return whether the client forwards requests of the server with this ``method`` to the `relay`, such as a
        proxy, so that no handler runs."""
        return self.settings.forwards is not None and all(row.name != method for row in self.settings.handlers)

    def _of_extension(self, method: str, params: Any, revision: Revision) -> Answer:
        found = [row for row in self.settings.handlers if row.name == method]
        if not found:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
        handler, given = self.settings.handlers[found[0]], structure_params(params, found[0].params, revision)

        async def answer() -> Any:
            return unstructure(await self._run(handler, given), revision)

        return answer

    def _is_for_later(self, later: ClientCapabilities, method: str, params: Any) -> bool:
        """Return whether this client has no handler for a request of the server, but another client will answer the
        request later.

        ``later`` are the capabilities of the other client.
        """
        if method not in ASKABLE:
            return False
        plain = cast("JSONObject", params) if isinstance(params, dict) else None
        question = InputRequest(cast("Askable", method), plain)
        here, needed = self._of_handlers(LATEST_MODERN), capability_for(question)
        return all(map(later.supports, needed)) and not all(map(here.supports, needed))

    def _forwarded(self, method: str, params: Any, key: str | None) -> Answer:
        if self.relay is None:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
        ask = self.relay.ask

        async def forward() -> Any:
            with self._time_of_user(method):
                return await ask(method, params or {}, key)

        return forward

    def _time_of_user(self, method: str) -> AbstractContextManager[None]:
        asks = method == "elicitation/create" or (
            method == "sampling/createMessage" and self.settings.sampling_asks_user
        )
        return self.timeouts.user_is_asked() if asks else nullcontext()

    def _sampling(self, handler: Callable[..., Any], params: CreateMessageParams) -> Answer:
        if not self.settings.sampling_tools and (params.tools is not None or params.tool_choice is not None):
            # By the specification's schema, a client that didn't declare sampling.tools MUST return an error for tools.
            raise CodedError(INVALID_PARAMS, "Invalid params: this client has not declared sampling.tools")

        async def sample() -> CreateMessageResult:
            answer = await self._ask("sampling/createMessage", _own("sampling", handler), params)
            return _expect(CreateMessageResult, answer, "a sampling handler")

        return sample

    def _elicitation(self, params: ElicitParams) -> Answer:
        is_form = isinstance(params, ElicitFormParams)
        handler = self.settings.elicitation if is_form else self.settings.elicitation_url
        if handler is None:
            # By MCP 2025-11-25 (elicitation page), the client MUST return -32602 for an undeclared mode.
            raise CodedError(
                INVALID_PARAMS,
                f"Invalid params: this client has not declared elicitation mode {'form' if is_form else 'url'}",
            )

        async def elicit() -> ElicitResult:
            own = _own("elicitation" if is_form else "elicitation_url", handler)
            answer = await self._ask("elicitation/create", own, params)
            if not isinstance(params, ElicitFormParams):
                return _expect(ElicitResult, answer, "a handler of URL elicitations")
            from ..protocol.form_defaults import with_defaults  # lazy import: few clients fill in forms

            if isinstance(answer, dict):
                answer = ElicitResult("accept", cast("dict[str, Any]", answer))
            answer = with_defaults(_expect(ElicitResult, answer, "an elicitation handler"), params.requested_schema)
            if self.check_forms:
                _check_form(answer, params.requested_schema)
            return answer

        return elicit

    async def _roots(self) -> ListRootsResult:
        roots = _own("roots", self.settings.roots)
        return ListRootsResult(list(await self._ask("roots/list", roots) if callable(roots) else roots or ()))

    async def _ask(self, method: str, handler: Callable[..., Any], *args: Any) -> Any:
        async with self._turns[method].turn():
            with self._time_of_user(method):
                return await self._run(handler, *args)

    async def _run(self, handler: Callable[..., Any], *args: Any) -> Any:
        # An object with an async __call__ counts as an async function as well.
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(*args)
        return await await_result(run_in_worker(partial(handler, *args), self._workers, lambda: self._graces))


def _own(kind: str, handler: Any) -> Any:
    """Return the handler of this ``kind`` that was passed to the current call, or else the client's ``handler``."""
    made = call_variable.get()
    return handler if made is None or not made[3] else made[3].get(kind, handler)


def _together(here: ClientCapabilities, later: ClientCapabilities) -> ClientCapabilities:
    """Merge the capabilities of this client, ``here``, and of another client, ``later``. The other client will answer
    those requests of the server for which this client has no handler."""

    def either(path: str) -> JSONObject | None:
        return {} if here.supports(path) or later.supports(path) else None

    sampling = here.sampling or later.sampling
    if sampling is not None:
        sampling = Sampling(either("sampling.context"), either("sampling.tools"))
    elicitation = here.elicitation or later.elicitation
    if elicitation is not None:
        elicitation = Elicitation(either("elicitation.form"), either("elicitation.url"))
    return attrs.evolve(here, roots=here.roots or later.roots, sampling=sampling, elicitation=elicitation)


def _check_form(answer: ElicitResult, schema: JSONObject) -> None:
    """Check that the values of an accepted form match ``schema``, as clients SHOULD (2025-11-25 and 2026-07-28
    elicitation, Security Considerations).

    Raises `ValueError` if they don't match.

    Only the flat form schemas of the specification are checked. Other schemas are ignored.
    """
    if answer.action != "accept":
        return
    try:
        check_form_schema(schema)
        from ..protocol.schema_validator import SchemaValidator  # lazy import: few clients fill in forms

        form = SchemaValidator(schema)
    except (CodedError, ValueError):
        return
    if fault := form.faults(answer.content or {}):
        raise ValueError(f"the filled-in form doesn't match the schema that the server sent: {fault}")


def _expect(kind: type[T], answer: Any, who: str) -> T:
    if not isinstance(answer, kind):
        raise TypeError(f"{who} must return {kind.__name__}, not {type(answer).__name__}")
    return answer


class Turn:
    """Counts one running handler towards the limit of concurrent handlers (`Turns`). While the handler waits for a
    server's reply, another handler may run."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._counts = True
        self._calls = 0
        self._over = False

    def yield_turn(self) -> None:
        """Let another handler run while this handler waits for a server's response. Before the server responds, it may
        send this client a request that needs a handler.

        Call `resume` once for each call of this method.
        """
        self._calls += 1
        self._release()

    async def resume(self) -> None:
        """Wait until this handler may continue after its call of a server (see `yield_turn`).

        Resumed handlers run before handlers that haven't begun. If this wait is cancelled, the handler no longer counts
        as running.
        """
        self._calls -= 1
        if self._counts or self._calls or self._over:
            return
        await self._turns.acquire(first=True)
        # While this trio task waited, another trio task of the same handler may have called `resume` for the handler.
        # Another task of the handler may also have begun to call a server, or the handler may have ended.
        if self._counts or self._calls or self._over:
            self._turns.release()
        else:
            self._counts = True

    def close(self) -> None:
        """Stop counting this handler as running, because it has ended.

        Background tasks that the handler started may still call servers.
        """
        self._over = True
        self._release()

    def _release(self) -> None:
        if self._counts:
            self._counts = False
            self._turns.release()


current_turn: ContextVar[Turn | None] = ContextVar("trio_mcp.current_turn", default=None)
"""Context variable with the `Turn` of the handler that is running. Also set in the handler's child tasks and worker
threads."""


class Turns:
    """Runs at most ``limit`` handlers of one kind (sampling, elicitation or roots) concurrently. Further requests of
    the server wait in order of arrival.

    ``paused`` returns the context manager in which a request waits.
    """

    def __init__(self, limit: int, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._free = limit
        self._paused = paused
        self._resuming = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Run the ``with`` block as one of at most ``limit`` concurrent handlers.

        If too many handlers are running, wait first. Otherwise, there is no checkpoint.
        """
        await self.acquire(first=False)
        turn = Turn(self)
        token = current_turn.set(turn)
        try:
            yield
        finally:
            current_turn.reset(token)
            turn.close()

    async def acquire(self, *, first: bool) -> None:
        """Wait until one more handler may run, and count it as running. If this wait is cancelled, nothing is
        counted."""
        if self._free:
            self._free -= 1
            return
        with self._paused():
            await (self._resuming if first else self._waiting).park()

    def release(self) -> None:
        """Stop counting one handler, and let the next waiting request of the server run, if any."""
        lot = self._resuming or self._waiting
        if lot:
            lot.unpark()
        else:
            self._free += 1
