"""Nurseries whose exceptions come out plain, never in a group.

`run_together` makes several calls at once for one caller; `open_service_nursery` runs background tasks that serve a
body, outlive it, and leave its exceptions alone.
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
    """Run all ``calls`` at once, each in its own task, and return their results in the order of ``calls``.

    The first failure cancels the other calls and is raised unchanged, never inside an ExceptionGroup (ruling
    16). Failures until the end of the others are logged, except `CodedError`. A cancel from outside is raised as one
    `trio.Cancelled`. ``on_failure`` gets the failure or the cancel at once, while the calls still clean up; later
    failures, too.
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
            await trio.lowlevel.checkpoint_if_cancelled()  # the same cancel, with its reason, outside of any group
            raise
    failed.sort(key=lambda each: isinstance(each, Exception))  # an interrupt of the program comes before all failures
    for later in failed[1:]:
        if not isinstance(later, CodedError):  # such an error is an answer, and one was given already
            logger.error("a call failed after another one had failed", exc_info=later)
    if failed:
        try:
            raise failed[0]
        finally:
            failed.clear()  # a traceback refers to this frame: only the garbage collector could free the two
    return [results[place] for place in range(len(calls))]


def _ignore_failure(_: BaseException) -> None:
    pass


def sole_exception(failure: BaseException) -> BaseException:
    """Return the exception in a group of one, however deep."""
    while isinstance(failure, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", failure).exceptions
        if len(members) != 1:
            break
        failure = members[0]
    return cast("BaseException", failure)


def failures_in(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """Return the members of a nursery's group that are not cancels.

    The caller must not keep the result: the tracebacks refer to the caller's frame.
    """
    failures = group.split(trio.Cancelled)[1]
    return [] if failures is None else [sole_exception(each) for each in failures.exceptions]


class ServiceNursery:
    """Starts the tasks that serve a body: see `open_service_nursery`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._shields: set[trio.CancelScope] | None = set()

    def start_soon(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start ``service`` in the background, shielded until the body is left."""
        self._nursery.start_soon(self._run_shielded, service, args)

    def start_protected(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start as `start_soon`. An interrupt is not raised in ``service``, but in the main task, as soon as possible:
        raised in a service, an interrupt would be seen only when the body has been left and all has ended."""
        self._nursery.start_soon(self._run_protected, service, args)

    @trio.lowlevel.enable_ki_protection
    async def _run_protected(self, service: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        await self._run_shielded(service, args)

    async def start(self, service: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Start as `start_soon`, wait until ``service`` called ``task_status.started``, and return the value given."""
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
            # Not before the task has started: until then it belongs to the caller that waits for that. And not when
            # that wait was cancelled meanwhile: trio leaves the task with it then, and only its end ends the wait.
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
        """Cancel all tasks, shielded no more, since the body was left."""
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
    """Open a nursery whose tasks are cancelled, with ``reason``, when the body is left, and not before.

    Leaving a call by a scope *around* the whole connection must still send the cancel for it, so the writer
    has to outlive the caller: a cancel from outside reaches the body first, and the tasks once the body is
    done. Their shield needs no deadline, because the shield ends with the body, which is not shielded. A task that
    fails still cancels the body.

    An exception of the body leaves as it is, a cancel from outside as one `trio.Cancelled`, never inside an
    ExceptionGroup: callers catch plain types. That is why the body's exception does not pass through the nursery
    but around it. Only where a task fails does a group leave, of the exceptions of the task and of the body.

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
        # Nothing but a cancel from outside, which the services have seen as well.
        if failure is None:
            await trio.lowlevel.checkpoint_if_cancelled()  # that cancel, with its reason, outside of any group
            raise
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
