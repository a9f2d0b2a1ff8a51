"""Nurseries that raise an exception without wrapping it in an exception group.

`run_together` makes several calls concurrently for one caller. `open_service_nursery` runs background tasks that serve
a body, outlive it, and don't wrap its exceptions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import trio

from ..jsonrpc.errors import CodedError
from .contexts import asynccontextmanager

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


async def run_together(
    calls: Sequence[Callable[[], Awaitable[T]]], on_failure: Callable[[BaseException], None] | None = None
) -> list[T]:
    """Run all ``calls`` concurrently, each in its own task. Return the results in the order of ``calls``.

    The first failure cancels the other calls and is raised unchanged, never inside an ExceptionGroup (ruling 16). Later
    failures are logged, except `CodedError`. Cancellation from outside is raised as one `trio.Cancelled`.
    ``on_failure`` is called with the failure or cancellation at once, while the calls still clean up, and then with
    later failures.
    """
    results: dict[int, T] = {}
    succeeded = trio.Event()
    tell = on_failure or _ignore_failure

    async def run(place: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[place] = await call()
        except Exception as error:
            tell(sole_exception(error))
            raise
        if len(results) == len(calls):
            succeeded.set()

    failed: list[BaseException] = []
    try:
        async with trio.open_nursery() as nursery:
            for place, call in enumerate(calls):
                nursery.start_soon(run, place, call)
            if calls:
                try:
                    await succeeded.wait()
                except trio.Cancelled as cancelled:
                    tell(cancelled)
                    raise
    except BaseExceptionGroup as group:
        failed += failures_in(group)
        if not failed:
            # Let a checkpoint raise the cancellation again: then it has a reason, and is in no exception group.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
    # Raise an interrupt such as KeyboardInterrupt in preference to other exceptions.
    failed.sort(key=lambda each: isinstance(each, Exception))
    for later in failed[1:]:
        # Don't log a CodedError: it stands for an error reply that the peer already has.
        if not isinstance(later, CodedError):
            logger.error("a call failed after another one had failed", exc_info=later)
    if failed:
        try:
            raise failed[0]
        finally:
            failed.clear()  # break the reference cycle: the exception's traceback refers to this frame
    return [results[place] for place in range(len(calls))]


def _ignore_failure(_: BaseException) -> None:
    pass


def sole_exception(failure: BaseException) -> BaseException:
    """If ``failure`` is an exception group with a single exception, return this exception, even if it is nested in
    further groups.

    Any other exception, and a group of several exceptions, is returned unchanged.
    """
    while isinstance(failure, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", failure).exceptions
        if len(members) != 1:
            break
        failure = members[0]
    return cast("BaseException", failure)


def failures_in(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """Return the exceptions in a nursery's exception group, without cancellations.

    The caller must not keep the result, because the tracebacks refer to the caller's frame.
    """
    failures = group.split(trio.Cancelled)[1]
    return [] if failures is None else [sole_exception(each) for each in failures.exceptions]


class ServiceNursery:
    """Runs background tasks until the body of an ``async with`` block has ended: see `open_service_nursery`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._shields: set[trio.CancelScope] | None = set()

    def start_soon(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start ``service`` as a background task.

        The task is shielded from cancellation until the body of the ``async with`` block ends.
        """
        self._nursery.start_soon(self._run_shielded, service, args)

    def start_protected(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start ``service`` like `start_soon`, but protect it from Ctrl-C.

        `KeyboardInterrupt` is then raised in the main task, as soon as possible. If ``service`` itself raised
        `KeyboardInterrupt`, the block would be interrupted only after its body has ended.
        """
        self._nursery.start_soon(self._run_protected, service, args)

    @trio.lowlevel.enable_ki_protection
    async def _run_protected(self, service: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        await self._run_shielded(service, args)

    async def start(self, service: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Start ``service`` like `start_soon`, and wait until it has called ``task_status.started``.

        Return the value that it passed to ``started``.
        """
        return await self._nursery.start(self._start_shielded, service, args)

    async def _run_shielded(self, service: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        with trio.CancelScope() as scope:
            self._shield(scope)
            try:
                await service(*args)
            finally:
                self._forget(scope)

    async def _start_shielded(
        self, service: Callable[..., Awaitable[Any]], args: tuple[Any, ...], *, task_status: trio.TaskStatus[Any]
    ) -> None:
        with trio.CancelScope() as scope:
            # Don't shield the new task before it has started, because a cancellation of `start` must still stop it.
            # Don't shield the new task if the calling task was cancelled and waits for the new task to end.
            def shield() -> None:
                if trio.current_effective_deadline() > -math.inf:
                    self._shield(scope)

            try:
                await service(*args, task_status=_Started(task_status, shield))
            finally:
                self._forget(scope)

    def _shield(self, scope: trio.CancelScope) -> None:
        if self._shields is not None:
            scope.shield = True
            self._shields.add(scope)

    def _forget(self, scope: trio.CancelScope) -> None:
        if self._shields is not None:
            self._shields.discard(scope)

    def cancel(self, reason: str) -> None:
        """Cancel all background tasks, because the body of the block has ended.

        Their shields are removed first.
        """
        shields, self._shields = self._shields or set(), None
        for scope in shields:
            scope.shield = False
        self._nursery.cancel_scope.cancel(reason=reason)


class _Started:
    def __init__(self, status: trio.TaskStatus[Any], then: Callable[[], None]) -> None:
        self._status = status
        self._then = then

    def started(self, value: Any = None) -> None:
        self._status.started(value)
        self._then()


@asynccontextmanager
async def open_service_nursery(reason: str) -> AsyncGenerator[ServiceNursery]:
    """Open a nursery for background tasks that the body of the ``async with`` block needs, such as a writer.

    The tasks are cancelled, with ``reason``, when the block ends, and not earlier.

    A call that is left because of a scope *around* the whole connection must still send its cancellation, so the writer
    must outlive the caller. Cancellation from outside therefore reaches the body first, and the tasks only when the
    body is done. Their shield needs no deadline, because it ends with the body, which isn't shielded. If a task fails,
    the body is cancelled.

    Callers can catch plain exception types. An exception of the body is raised unchanged, and cancellation from outside
    as one `trio.Cancelled`, never inside an ExceptionGroup. To make that work, the body's exception doesn't pass
    through the nursery. Only if a task fails, a group with the exceptions of the task and of the body is raised.

        async with open_service_nursery("the client was closed") as nursery:
            nursery.start_soon(writer)
            yield client
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            services = ServiceNursery(nursery)
            try:
                yield services
            except BaseException as error:
                failure = error
            services.cancel(reason)
    except BaseExceptionGroup as group:
        if broken := failures_in(group):
            raised = [] if failure is None or isinstance(failure, trio.Cancelled) else [failure]
            raise BaseExceptionGroup("services failed", [*raised, *broken]) from None
        # The exception group contains no errors, but only a cancellation from outside of this nursery.
        # A cancellation from outside has also cancelled the background tasks in the nursery.
        if failure is None:
            # Let a checkpoint raise the cancellation: then it has a reason, and is in no exception group.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
