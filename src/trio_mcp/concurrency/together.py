"""run_together makes several calls at once for one caller, and raises their exceptions plain."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import trio

from ..jsonrpc.errors import CodedError

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


async def run_together(
    calls: Sequence[Callable[[], Awaitable[T]]], on_failure: Callable[[BaseException], None] | None = None
) -> list[T]:
    """Run all ``calls`` at once, each in its own task, and return their results in the order of ``calls``.

    The first failure cancels the other calls and is raised unchanged, never inside an ExceptionGroup (DESIGN ruling
    16). Failures until the end of the others are logged, except `CodedError`. A cancel from outside is raised as one
    `trio.Cancelled`. ``on_failure`` gets the failure or the cancel at once, while the calls still clean up; later
    failures, too.
    """
    results: dict[int, T] = {}
    succeeded = trio.Event()
    tell = on_failure or _nobody_cares

    async def run(place: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[place] = await call()
        except Exception as error:
            tell(only_member(error))
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


def _nobody_cares(_: BaseException) -> None:
    pass


def only_member(failure: BaseException) -> BaseException:
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
    return [] if failures is None else [only_member(each) for each in failures.exceptions]
