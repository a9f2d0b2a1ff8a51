"""WorkerContext: what a plain ``def`` handler sees of its request, from its worker thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

import trio

from ..runtime.cancellation import Cancellation
from ..runtime.logs import RequestLog
from ..runtime.workers import await_in_worker
from ..spec.fields import JSONObject
from ..spec.roots import Root
from ..spec.sampling import CreateMessageResult, SamplingMessage
from .context import RequestContext
from .elicit_answer import ElicitAnswer
from .options import SamplingOptions

__all__ = ["WorkerContext", "WorkerLog"]

T = TypeVar("T")


def _wait_for(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await_in_worker(partial(call, *args, **kwargs))


def _ask(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await_in_worker(partial(call, *args, **kwargs), asks=True)


def _thread_is_cancelled() -> bool:
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    except RuntimeError:  # it is the handler's own thread, and none of trio's
        return False
    return False


class WorkerLog:
    """`RequestLog` for threads: the same methods, and they block until there is room."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def debug(self, data: Any, logger: str | None = None) -> None:
        """For finding faults."""
        _wait_for(self._log.debug, data, logger)

    def info(self, data: Any, logger: str | None = None) -> None:
        """What is going on."""
        _wait_for(self._log.info, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> None:
        """Normal, but worth a look."""
        _wait_for(self._log.notice, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> None:
        """Something may be wrong."""
        _wait_for(self._log.warning, data, logger)

    def error(self, data: Any, logger: str | None = None) -> None:
        """Something went wrong."""
        _wait_for(self._log.error, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> None:
        """A part of the system failed."""
        _wait_for(self._log.critical, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> None:
        """Somebody must act at once."""
        _wait_for(self._log.alert, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> None:
        """The system is unusable."""
        _wait_for(self._log.emergency, data, logger)


class WorkerContext:
    """The members of `RequestContext`, from a worker thread: what is async there blocks here.

    A thread cannot be interrupted, so long work asks `check_cancelled` often. Each blocking method also
    raises `trio.Cancelled` once the request was cancelled; let it propagate. While it waits for an answer of the
    client, another handler may have the thread's place; see `Limits.max_asking_threads`.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled."""
        trio.from_thread.check_cancelled()

    @property
    def is_cancelled(self) -> bool:
        """As `RequestContext.is_cancelled`."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """As `RequestContext.cancellation`."""
        known = self._context.cancellation
        if known is None and _thread_is_cancelled():  # by what only trio's own thread can look at
            with suppress(trio.RunFinishedError):
                known = trio.from_thread.run_sync(getattr, self._context, "cancellation")
        return known

    @property
    def cancelled(self) -> threading.Event:
        """As `RequestContext.cancelled`."""
        try:
            return trio.from_thread.run_sync(getattr, self._context, "cancelled")
        except RuntimeError:  # a thread of the handler's own, which cannot have trio look, or trio has ended
            return self._context.cancelled

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """As `RequestContext.progress`."""
        return trio.from_thread.run_sync(self._context.progress, progress, total, message)

    @property
    def log(self) -> WorkerLog:
        """The client's log."""
        return WorkerLog(self._context.log)

    def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        """As `RequestContext.send_notification`."""
        _wait_for(self._context.send_notification, method, params)

    def elicitation_complete(self, elicitation_id: str) -> bool:
        """As `RequestContext.elicitation_complete`."""
        return _wait_for(self._context.elicitation_complete, elicitation_id)

    def send_request(self, method: str, params: JSONObject | None, result_type: type[T]) -> T:
        """As `RequestContext.send_request`."""
        return _ask(self._context.send_request, method, params, result_type)

    def sample(
        self, messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Unpack[SamplingOptions]
    ) -> CreateMessageResult:
        """As `RequestContext.sample`."""
        return _ask(self._context.sample, messages, max_tokens=max_tokens, **options)

    def elicit(self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None) -> ElicitAnswer:
        """As `RequestContext.elicit`."""
        return _ask(self._context.elicit, message, form, meta=meta)

    def elicit_url(
        self, message: str, url: str, elicitation_id: str, *, meta: JSONObject | None = None
    ) -> ElicitAnswer:
        """As `RequestContext.elicit_url`."""
        return _ask(self._context.elicit_url, message, url, elicitation_id, meta=meta)

    def list_roots(self) -> list[Root]:
        """As `RequestContext.list_roots`."""
        return _ask(self._context.list_roots)

    def sample_raw(self, params: JSONObject) -> JSONObject:
        """As `RequestContext.sample_raw`."""
        return _ask(self._context.sample_raw, params)

    def elicit_raw(self, params: JSONObject) -> JSONObject:
        """As `RequestContext.elicit_raw`."""
        return _ask(self._context.elicit_raw, params)

    def list_roots_raw(self) -> JSONObject:
        """As `RequestContext.list_roots_raw`."""
        return _ask(self._context.list_roots_raw)
