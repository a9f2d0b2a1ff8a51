"""WorkerContext: the view that a plain ``def`` handler has of its request, from its worker thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

import trio

from ...concurrency.workers import await_in_worker
from ...protocol.fields import JSONObject
from ...protocol.types.roots import Root
from ...protocol.types.sampling import CreateMessageResult, SamplingMessage
from ...runtime.requests.cancellation import Cancellation
from ...runtime.requests.logs import RequestLog
from ..options import SamplingOptions
from .elicit_answer import ElicitAnswer
from .request_context import RequestContext

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
    """`RequestLog` for threads: the same methods, which block until there is room."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def debug(self, data: Any, logger: str | None = None) -> None:
        """Log details for finding faults."""
        _wait_for(self._log.debug, data, logger)

    def info(self, data: Any, logger: str | None = None) -> None:
        """Log what is going on."""
        _wait_for(self._log.info, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> None:
        """Log an event that is normal, but worth a look."""
        _wait_for(self._log.notice, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> None:
        """Log that something may be wrong."""
        _wait_for(self._log.warning, data, logger)

    def error(self, data: Any, logger: str | None = None) -> None:
        """Log that something went wrong."""
        _wait_for(self._log.error, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> None:
        """Log that a part of the system failed."""
        _wait_for(self._log.critical, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> None:
        """Log that somebody must act at once."""
        _wait_for(self._log.alert, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> None:
        """Log that the system is unusable."""
        _wait_for(self._log.emergency, data, logger)


class WorkerContext:
    """The members of `RequestContext`, for a worker thread: those that are async there block here.

    A thread cannot be interrupted, so long work calls `check_cancelled` often. Each blocking method also
    raises `trio.Cancelled` once the request was cancelled; let it propagate. While a thread waits for an answer of the
    client, another handler may have its place; see `Limits.max_asking_threads`.
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
        """True once the request was cancelled. See `RequestContext.is_cancelled`."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled. See `RequestContext.cancellation`."""
        known = self._context.cancellation
        if known is None and _thread_is_cancelled():  # for a reason that only trio's thread can read
            with suppress(trio.RunFinishedError):
                known = trio.from_thread.run_sync(getattr, self._context, "cancellation")
        return known

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the request is cancelled. See `RequestContext.cancelled`."""
        try:
            return trio.from_thread.run_sync(getattr, self._context, "cancelled")
        except RuntimeError:  # a thread of the handler's own, which cannot call into trio, or trio has ended
            return self._context.cancelled

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Call `RequestContext.progress` in trio's thread."""
        return trio.from_thread.run_sync(self._context.progress, progress, total, message)

    @property
    def log(self) -> WorkerLog:
        """The client's log."""
        return WorkerLog(self._context.log)

    def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        """Call `RequestContext.send_notification`, and block until it returns."""
        _wait_for(self._context.send_notification, method, params)

    def elicitation_complete(self, elicitation_id: str) -> bool:
        """Call `RequestContext.elicitation_complete`, and block until it returns."""
        return _wait_for(self._context.elicitation_complete, elicitation_id)

    def send_request(self, method: str, params: JSONObject | None, result_type: type[T]) -> T:
        """Call `RequestContext.send_request`, and block until it returns."""
        return _ask(self._context.send_request, method, params, result_type)

    def sample(
        self, messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Unpack[SamplingOptions]
    ) -> CreateMessageResult:
        """Call `RequestContext.sample`, and block until it returns."""
        return _ask(self._context.sample, messages, max_tokens=max_tokens, **options)

    def elicit(self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None) -> ElicitAnswer:
        """Call `RequestContext.elicit`, and block until it returns."""
        return _ask(self._context.elicit, message, form, meta=meta)

    def elicit_url(
        self, message: str, url: str, elicitation_id: str, *, meta: JSONObject | None = None
    ) -> ElicitAnswer:
        """Call `RequestContext.elicit_url`, and block until it returns."""
        return _ask(self._context.elicit_url, message, url, elicitation_id, meta=meta)

    def list_roots(self) -> list[Root]:
        """Call `RequestContext.list_roots`, and block until it returns."""
        return _ask(self._context.list_roots)

    def sample_raw(self, params: JSONObject) -> JSONObject:
        """Call `RequestContext.sample_raw`, and block until it returns."""
        return _ask(self._context.sample_raw, params)

    def elicit_raw(self, params: JSONObject) -> JSONObject:
        """Call `RequestContext.elicit_raw`, and block until it returns."""
        return _ask(self._context.elicit_raw, params)

    def list_roots_raw(self) -> JSONObject:
        """Call `RequestContext.list_roots_raw`, and block until it returns."""
        return _ask(self._context.list_roots_raw)
