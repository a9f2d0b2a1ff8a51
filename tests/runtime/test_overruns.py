from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.runtime.requests.overruns import Overruns


@asynccontextmanager
async def watching(grace: float) -> AsyncGenerator[tuple[Any, list[tuple[Any, float]]]]:
    """An `Overruns`, and who was reported when."""
    reported: list[tuple[Any, float]] = []
    begun = trio.current_time()
    overruns: Any = Overruns(grace, lambda scope: reported.append((scope, trio.current_time() - begun)))
    async with trio.open_nursery() as nursery:
        overruns.task.start_in(nursery, copy_context())
        yield overruns, reported
        nursery.cancel_scope.cancel()


async def test_one_that_has_not_ended_after_its_grace_is_reported_once(autojump_clock: object) -> None:
    async with watching(5) as (overruns, reported):
        overruns.watch("slow")
        await trio.sleep(100)
    assert reported == [("slow", pytest.approx(5))]


async def test_one_that_ended_in_time_is_not(autojump_clock: object) -> None:
    async with watching(5) as (overruns, reported):
        overruns.watch("quick")
        await trio.sleep(4)
        overruns.forget("quick")
        await trio.sleep(100)
    assert reported == []


async def test_each_has_its_own_grace(autojump_clock: object) -> None:
    async with watching(5) as (overruns, reported):
        for name in "abc":
            overruns.watch(name)
            await trio.sleep(2)
        overruns.forget("b")
        await trio.sleep(100)
    assert reported == [("a", pytest.approx(5)), ("c", pytest.approx(9))]


async def test_one_that_is_watched_after_a_quiet_time_is_reported_too(autojump_clock: object) -> None:
    async with watching(1) as (overruns, reported):
        await trio.sleep(50)
        overruns.watch("late")
        await trio.sleep(50)
    assert reported == [("late", pytest.approx(51))]


async def test_without_a_grace_it_is_reported_at_once(autojump_clock: object) -> None:
    async with watching(0) as (overruns, reported):
        overruns.watch("now")
        await wait_all_tasks_blocked()
        assert reported == [("now", pytest.approx(0))]


async def test_forgetting_what_nobody_watches_does_nothing(autojump_clock: object) -> None:
    async with watching(1) as (overruns, reported):
        overruns.forget("nobody")
    assert reported == []
