from __future__ import annotations

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import Sequencer

from trio_mcp.concurrency.nurseries import open_service_nursery


class Journal(list[str]):
    async def serve(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.append("service cancelled")


async def test_service_nursery_cancels_its_tasks_when_its_with_block_ends() -> None:
    journal = Journal()
    async with open_service_nursery("over") as nursery:
        nursery.start_soon(journal.serve)
        await trio.testing.wait_all_tasks_blocked()
    assert journal == ["service cancelled"]


async def test_cancelled_service_task_sees_the_cancel_reason() -> None:
    reasons: list[str | None] = []

    async def serve() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(cancelled.reason)
            raise

    async with open_service_nursery("the client was closed") as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
    assert reasons == ["the client was closed"]


async def test_exception_in_the_with_block_of_a_service_nursery_is_raised_without_an_exception_group() -> None:
    journal = Journal()
    with pytest.raises(LookupError, match="body"):
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(journal.serve)
            raise LookupError("body")


async def test_exception_group_raised_in_the_with_block_of_a_service_nursery_is_unchanged() -> None:
    group = ExceptionGroup("mine", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught:
        async with open_service_nursery("over"):
            raise group
    assert caught.value is group


async def test_cancelled_scope_around_a_service_nursery_ends_the_with_block_before_the_service_tasks() -> None:
    journal = Journal()
    with trio.CancelScope() as scope:
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(journal.serve)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                journal.append("body done")
    assert scope.cancelled_caught
    assert journal == ["body done", "service cancelled"]


async def test_exception_in_the_with_block_of_a_service_nursery_is_raised_even_during_an_outer_cancel() -> None:
    journal = Journal()
    with pytest.raises(LookupError, match="body"), trio.CancelScope() as scope:
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(journal.serve)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("body")
    assert journal == ["service cancelled"]


@pytest.mark.parametrize("body_waits", [True, False])
async def test_outer_cancel_of_a_service_nursery_raises_a_single_cancelled_with_the_reason(body_waits: bool) -> None:
    journal = Journal()
    with trio.CancelScope() as scope, pytest.raises(trio.Cancelled) as caught:
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(journal.serve)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel(reason="enough")
            if body_waits:
                await trio.sleep_forever()
    assert caught.value.reason == "enough"
    assert journal == ["service cancelled"]


async def test_service_task_that_fails_does_not_hide_the_exception_of_the_with_block() -> None:
    async def fail() -> None:
        raise OSError("service")

    with pytest.RaisesGroup(pytest.RaisesExc(LookupError, match="body"), pytest.RaisesExc(OSError, match="service")):
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                raise LookupError("body")


async def test_exception_of_a_failed_service_task_cancels_the_with_block_and_is_raised() -> None:
    async def fail() -> None:
        raise OSError("service")

    journal = Journal()
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="service")):
        async with open_service_nursery("over") as nursery:
            nursery.start_soon(journal.serve)
            nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                journal.append("body cancelled")
    assert journal == ["body cancelled", "service cancelled"]


async def test_service_task_that_returns_does_not_affect_the_with_block() -> None:
    async with open_service_nursery("over") as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        await trio.testing.wait_all_tasks_blocked()


async def test_service_task_that_has_started_runs_until_the_with_block_of_a_cancelled_nursery_ends() -> None:
    journal = Journal()

    async def serve(name: str, *, task_status: trio.TaskStatus[str]) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started(f"{name} is up")
        await journal.serve()

    with trio.CancelScope() as scope:
        async with open_service_nursery("over") as nursery:
            assert await nursery.start(serve, "it") == "it is up"
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            journal.append("body done")
            await trio.lowlevel.checkpoint()
    assert journal == ["body done", "service cancelled"]


async def test_service_task_that_is_starting_is_cancelled_if_the_start_call_is_cancelled() -> None:
    async def never_up(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as outer:

            async def body() -> None:
                async with open_service_nursery("over") as nursery:
                    await nursery.start(never_up)

            outer.start_soon(body)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


async def test_service_nursery_start_does_not_hang_if_it_is_cancelled_just_when_it_succeeds() -> None:
    journal = Journal()
    with trio.CancelScope() as scope:
        async with open_service_nursery("over") as nursery:

            async def serve(*, task_status: trio.TaskStatus[None]) -> None:
                scope.cancel()
                task_status.started()
                await journal.serve()

            with trio.fail_after(PATIENCE):
                await nursery.start(serve)
    assert scope.cancelled_caught
    assert journal == ["service cancelled"]


async def test_service_task_started_while_the_nursery_closes_is_cancelled_immediately() -> None:
    journal = Journal()
    sequence = Sequencer()
    async with open_service_nursery("over") as nursery:

        async def late() -> None:
            try:
                async with sequence(0):
                    await trio.sleep_forever()
            finally:
                nursery.start_soon(journal.serve)

        nursery.start_soon(late)
        await trio.testing.wait_all_tasks_blocked()
    assert journal == ["service cancelled"]
