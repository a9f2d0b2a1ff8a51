"""One inbound request: its phases, its deadline, what it tells its client, and what is left of it at its end."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.state.peers import accepted, meta_of, server_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.concurrency.threads import current_run
from trio_mcp.concurrency.wakeups import Alarms
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.errors import NoBackChannel
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, LOG_LEVEL, TRACEPARENT, TraceContext
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS, Revision
from trio_mcp.protocol.types.notifications import log_level_rank
from trio_mcp.runtime.cancellation import DEADLINE_PASSED, REMAINING_MS, CancelCause, Cancellation
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.peer import UNKNOWN_PEER
from trio_mcp.runtime.requests.admission import Ticket
from trio_mcp.runtime.requests.questions import Question
from trio_mcp.runtime.requests.reports import NEVER_LOGGED
from trio_mcp.runtime.requests.rounds import Rounds, require_input
from trio_mcp.runtime.requests.scope import RequestScope, current_request
from trio_mcp.state.requests import IllegalStep, Phase, Step

PARENT = f"00-{'1' * 32}-{'2' * 16}-01"


def at_once(cause: CancelCause, reason: str | None) -> Cancellation:
    return Cancellation(cause, reason, trio.current_time())


class FakeRunner:
    """Of what runs requests, only what a request looks at; cancels are carried out and noted."""

    def __init__(self, *, may_log: bool = True) -> None:
        self.limits = Limits(deadline_grace=1, progress_interval=1)
        self.alarms, self.endings, self.trio_run = Alarms(), None, current_run()
        self.may_log = may_log
        self.ends: list[tuple[CancelCause, str | None]] = []
        self.parked: list[list[str]] = []

    def cancel(self, scope: RequestScope, cause: CancelCause, reason: str | None) -> None:
        if scope.cancel(Cancellation(cause, reason, trio.current_time())):
            self.ends.append((cause, reason))

    def park(self, scope: RequestScope, questions: Sequence[Question]) -> None:
        self.parked.append([question.key for question in questions])
        scope.park()


class Floor:
    """Requests, and where their lines go."""

    def __init__(self, runner: FakeRunner, nursery: trio.Nursery) -> None:
        self.runner: Any = runner
        self.nursery = nursery
        self.exchange = Exchange(server_of(LATEST_LEGACY), Outbox(1000), UNKNOWN_PEER)

    def scope(self, revision: Revision = LATEST_LEGACY, **meta: Any) -> RequestScope:
        if not revision.handshake:
            meta = meta_of(**{CLIENT_CAPABILITIES: {"roots": {}}, **meta})
        message = Request(1, "tools/call", {"name": "x", "_meta": meta})
        request = accepted(server_of(revision).receive(message))
        return RequestScope(self.runner, self.exchange, request, Ticket(Caller(), 1, streams=False))

    def running(self, revision: Revision = LATEST_LEGACY, **meta: Any) -> RequestScope:
        scope = self.scope(revision, **meta)
        scope.start(self.nursery)
        return scope

    def sent(self) -> list[Any]:
        return [json.loads(line) for line in bytes(self.exchange.outbox.take_nowait()).splitlines()]

    def progress(self) -> list[Any]:
        return [each["params"]["progress"] for each in self.sent()]


@asynccontextmanager
async def floor(**runner: Any) -> AsyncGenerator[Floor]:
    async with trio.open_nursery() as outer:
        this = FakeRunner(**runner)
        outer.start_soon(this.alarms.run)
        async with trio.open_nursery() as nursery:
            yield Floor(this, nursery)
            nursery.cancel_scope.cancel()
        outer.cancel_scope.cancel()


# Phases


async def test_request_scope_goes_through_the_phases_waiting_running_and_over() -> None:
    async with floor() as this:
        scope = this.scope()
        assert (scope.phase, scope.sends, (scope.handler_task is not None), scope.is_cancelled) == (
            Phase.WAITING,
            False,
            False,
            False,
        )
        scope.start(this.nursery)
        assert (scope.phase, scope.sends, (scope.handler_task is not None)) == (Phase.RUNNING, True, True)
        assert current_request.get() is scope
        scope.mute()
        assert (scope.phase, scope.sends) == (Phase.MUTED, False)
        scope.detach()
        assert scope.phase is Phase.OVER
        with pytest.raises(IllegalStep):
            scope.detach()


async def test_request_cancelled_before_its_start_never_runs() -> None:
    async with floor() as this:
        scope = this.scope()
        assert scope.cancel(at_once(CancelCause.PEER, None))
        with pytest.raises(IllegalStep):
            scope.start(this.nursery)
        assert (scope.phase, (scope.handler_task is not None)) == (Phase.MUTED, False)


async def test_request_scope_that_is_detached_changes_to_the_phase_over() -> None:
    async with floor() as this:
        scope = this.running()
        scope.detach()
        assert scope.phase is Phase.OVER


async def test_leave_method_of_a_request_scope_returns_true_only_if_its_nursery_was_cancelled() -> None:
    for cancels in (True, False):
        async with floor() as this:
            scope = this.scope()
            async with trio.open_nursery() as nursery:
                scope.start(nursery)
                if cancels:
                    nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()
            assert scope.leave() is cancels


async def test_server_sends_no_message_of_a_request_before_the_start_or_after_the_end_of_its_handler() -> None:
    async with floor() as this:
        scope = this.scope(progressToken=0)
        assert not scope.put(b"{}\n")
        assert not scope.progress(1)
        scope.start(this.nursery)
        assert scope.put(b"{}\n")
        assert scope.progress(2)
        scope.mute()
        assert not scope.put(b"{}\n")
        assert not scope.progress(3)
        assert len(this.sent()) == 2


# Cancels


async def test_cancelled_request_removes_its_unsent_messages_and_ignores_further_cancels(
    autojump_clock: MockClock,
) -> None:
    async with floor() as this:
        scope = this.running(progressToken="p")
        await trio.sleep(7)
        scope.put(b'{"method":"x"}\n')
        scope.progress(1)
        scope.progress(2)
        assert scope.cancel(at_once(CancelCause.PEER, "enough"))
        assert not scope.cancel(at_once(CancelCause.SHUTDOWN, "over"))
        assert scope.cancellation == Cancellation(CancelCause.PEER, "enough", 7)
        assert (scope.is_cancelled, scope.phase) == (True, Phase.MUTED)
        await trio.sleep(10)
        assert this.sent() == [], "neither lines nor the progress that was kept"


async def test_unsent_input_requests_of_an_expired_request_are_still_sent() -> None:
    async with floor() as this:
        scope = this.running()
        scope.put(b'{"method":"x"}\n')
        scope.cancel(at_once(CancelCause.EXPIRED, None))
        assert len(this.sent()) == 1


async def test_finished_request_cannot_be_cancelled() -> None:
    async with floor() as this:
        scope = this.running()
        scope.mute()
        assert scope.cancel(at_once(CancelCause.PEER, None)), "its reply may still wait for room"
        other = this.running()
        other.detach()
        assert not other.cancel(at_once(CancelCause.PEER, None))
        assert other.from_outside is None


async def test_cancelled_request_stops_waiting_for_outbox_space_or_a_retry(autojump_clock: MockClock) -> None:
    async with floor() as this:
        this.exchange.outbox.put(b"x" * 4000)
        for wait in ("room", "round"):
            scope = this.running(LATEST_MODERN)
            done = list[str]()
            if wait == "round":
                this.exchange.outbox.take_nowait()
                this.nursery.start_soon(ask, scope, done)
                await wait_all_tasks_blocked()

            async def waiting(scope: RequestScope = scope, wait: str = wait, done: list[str] = done) -> None:
                assert scope.rounds is not None or wait == "room"
                await scope.until_cancelled(scope.outbox.room(4) if scope.rounds is None else scope.rounds.resumed())
                done.append("waited")

            this.nursery.start_soon(waiting)
            await wait_all_tasks_blocked()
            assert done == []
            scope.cancel(at_once(CancelCause.PEER, "enough"))
            await wait_all_tasks_blocked()
            assert "waited" in done


async def ask(scope: RequestScope, answers: list[Any]) -> None:
    try:
        answers.append(await require_input(scope, "roots/list", None))
    except NoBackChannel:
        answers.append("no way back")


async def test_request_runner_is_notified_only_once_that_a_request_was_aborted() -> None:
    async with floor() as this:
        scope = this.running()
        scope.abort(CancelCause.DISCONNECT, "gone")
        scope.abort(CancelCause.SHUTDOWN, "over")
        assert this.runner.ends == [(CancelCause.DISCONNECT, "gone")]


# The deadline of the caller


async def test_request_expires_after_the_deadline_of_its_caller_plus_a_grace_period(autojump_clock: MockClock) -> None:
    async with floor() as this:
        await trio.sleep(10)
        scope = this.running(**{REMAINING_MS: 3000})
        assert scope.due == 14
        await trio.sleep(3.9)
        assert this.runner.ends == []
        await trio.sleep(0.2)
        assert this.runner.ends == [(CancelCause.DEADLINE, DEADLINE_PASSED)]


async def test_request_without_a_deadline_never_expires(autojump_clock: MockClock) -> None:
    async with floor() as this:
        for scope in (this.scope(), this.scope(progressToken=1)):
            assert scope.due == float("inf")
        assert len(this.runner.alarms) == 0


async def test_finished_request_does_not_expire(autojump_clock: MockClock) -> None:
    async with floor() as this:
        scope = this.running(**{REMAINING_MS: 3000})
        scope.detach()
        await trio.sleep(100)
        assert this.runner.ends == []


async def test_cleanup_grace_timer_is_stopped_when_the_request_ends(autojump_clock: MockClock) -> None:
    async with floor() as this:
        rung = list[str]()
        for name in ("ends", "stays"):
            scope = this.running()
            scope.cancel(at_once(CancelCause.PEER, None))
            scope.cleanup_alarm = this.runner.alarms.set(5, lambda name=name: rung.append(name))
            if name == "ends":
                scope.detach()
        await trio.sleep(10)
        assert rung == ["stays"]


# What it tells its client


async def test_buffered_progress_is_sent_after_the_interval_or_before_the_request_ends(
    autojump_clock: MockClock,
) -> None:
    async with floor() as this:
        scope = this.running(progressToken=0)
        assert scope.progress(1, 10, "m")
        assert this.sent()[0]["params"] == {"progressToken": 0, "progress": 1, "total": 10, "message": "m"}
        assert not scope.progress(2)
        await trio.sleep(0.9)
        assert this.sent() == []
        await trio.sleep(0.2)
        assert this.progress() == [2]
        assert not scope.progress(3)
        scope.mute()
        assert this.progress() == [3]
        await trio.sleep(10)
        assert this.sent() == []


async def test_progress_is_sent_without_its_message_in_a_revision_that_lacks_the_field() -> None:
    async with floor() as this:
        scope = this.running(REVISIONS["2024-11-05"], progressToken=0)
        scope.progress(1, None, "m")
        assert this.sent()[0]["params"] == {"progressToken": 0, "progress": 1}


async def test_request_without_a_progress_token_sends_no_progress() -> None:
    async with floor() as this:
        assert not this.running().progress(1)
        assert this.sent() == []


async def test_legacy_request_uses_the_log_level_of_its_connection() -> None:
    async with floor() as this:
        scope = this.running()
        assert scope.log._minimum_rank == log_level_rank("info")
        this.exchange.state.set_log_level("error")
        assert scope.log._minimum_rank == log_level_rank("error")
        assert [scope.log._admits(level) for level in ("warning", "error", "odd")] == [False, True, True]


async def test_modern_request_sends_logs_at_the_level_in_its_meta_and_no_logs_without_a_level() -> None:
    async with floor() as this:
        scope, silent = this.running(LATEST_MODERN, **{LOG_LEVEL: "error"}), this.running(LATEST_MODERN)
        assert (scope.log._minimum_rank, silent.log._minimum_rank) == (log_level_rank("error"), NEVER_LOGGED)
        assert [scope.log._admits(level) for level in ("warning", "error", "odd")] == [False, True, True]
        assert [silent.log._admits(level) for level in ("emergency", "odd")] == [False, False]


async def test_request_log_sends_nothing_without_logging_capability_or_outside_the_run_of_the_request() -> None:
    async with floor(may_log=False) as this:
        assert this.running().log._minimum_rank == NEVER_LOGGED
        assert not this.running().log._admits("odd")
    async with floor() as this:
        waiting, closed = this.scope(), this.running()
        closed.mute()
        assert not waiting.log._admits("error")
        assert not closed.log._admits("error")


async def test_request_log_is_created_once_per_request() -> None:
    async with floor() as this:
        scope = this.running()
        assert scope.log is scope.log
        await scope.log.error("x")
        assert this.sent()[0]["params"]["data"] == "x"
        assert scope.outbox is this.exchange.outbox


async def test_trace_context_of_a_request_is_read_from_its_meta() -> None:
    async with floor() as this:
        assert this.scope(**{TRACEPARENT: PARENT}).request.trace == TraceContext(PARENT)
        assert this.scope().request.trace is None


# Rounds


async def test_request_that_awaited_input_sends_its_messages_on_the_stream_of_the_retry(
    autojump_clock: MockClock,
) -> None:
    async with floor() as this:
        scope, answers = this.running(LATEST_MODERN, progressToken="p", **{REMAINING_MS: 3000}), list[Any]()
        scope.progress(1)
        scope.progress(2)
        this.nursery.start_soon(ask, scope, answers)
        await wait_all_tasks_blocked()
        [[key]] = this.runner.parked
        assert (scope.phase, scope.sends) == (Phase.PARKED, False)
        assert this.progress() == [2], "the latest goes out before the questions"
        assert not scope.put(b"{}\n")
        assert not scope.progress(5)

        retry = this.scope(LATEST_MODERN, progressToken="q", **{REMAINING_MS: 9000})
        elsewhere = Floor(FakeRunner(), this.nursery)
        elsewhere.runner.alarms = this.runner.alarms
        ticket, first = Ticket(Caller(), 1, streams=False), scope.request
        await trio.sleep(2)
        scope.bind(elsewhere.runner, elsewhere.exchange, retry.request, ticket)
        retry.cancel(at_once(CancelCause.PEER, None))
        assert (scope.phase, scope.request, scope.ticket) == (Phase.WAITING, retry.request, ticket)
        assert (scope.runner, scope.exchange) == (elsewhere.runner, elsewhere.exchange)
        assert scope.request.continuation is first.continuation
        assert scope.due == 12, "it has a deadline of its own"
        assert scope.rounds is not None
        scope.rounds.receive({key: {"roots": []}})
        await wait_all_tasks_blocked()
        assert answers == []
        scope.advance(Step.START)
        scope.rounds.resume()
        await wait_all_tasks_blocked()
        assert answers == [{"roots": []}]
        assert scope.progress(3)
        assert scope.put(b'{"method":"x"}\n')
        assert [each.get("params", {}).get("progressToken") for each in elsewhere.sent()] == ["q", None]
        assert this.sent() == []


async def test_retry_without_a_progress_token_gets_no_progress() -> None:
    async with floor() as this:
        scope, answers = this.running(LATEST_MODERN, progressToken="p"), list[Any]()
        this.nursery.start_soon(ask, scope, answers)
        await wait_all_tasks_blocked()
        retry = this.scope(LATEST_MODERN)
        scope.bind(this.runner, this.exchange, retry.request, Ticket(Caller(), 1, streams=False))
        scope.advance(Step.START)
        scope.rounds.resume()
        assert not scope.progress(1)


async def test_input_request_of_a_cancelled_or_ended_request_raises_no_back_channel() -> None:
    async with floor() as this:
        cancelled, left = this.running(LATEST_MODERN), this.running(LATEST_MODERN)
        cancelled.cancel(at_once(CancelCause.PEER, None))
        left.leave()
        for scope in (cancelled, left):
            with pytest.raises(NoBackChannel), trio.CancelScope(shield=True):
                await require_input(scope, "roots/list", None)


async def test_handler_that_waits_for_an_answer_raises_no_back_channel_when_its_request_ends() -> None:
    for end in ("cancel", "leave", "detach", "run_again"):
        async with floor() as this, trio.open_nursery() as elsewhere:
            scope, answers = this.running(LATEST_MODERN), list[Any]()
            elsewhere.start_soon(ask, scope, answers)
            await wait_all_tasks_blocked()
            match end:
                case "cancel":
                    scope.cancel(at_once(CancelCause.PEER, None))
                case "leave":
                    scope.leave()
                case "detach":
                    scope.detach()
                case _:
                    scope.run_again({}, "again")
            await wait_all_tasks_blocked()
            assert answers == ["no way back"], end


async def test_replay_of_a_handler_cancels_its_first_run_and_sends_the_result_of_its_second_run(
    autojump_clock: MockClock,
) -> None:
    async with floor() as this:
        scope = this.running()
        assert scope.answered_instead is None
        scope.run_again({"a": 1}, "it will run again")
        assert scope.answered_instead == {"a": 1}
        assert scope.cancellation == Cancellation(CancelCause.REPLAY, "it will run again", 0)
        assert scope.from_outside is None
        assert this.nursery.cancel_scope.cancel_called


async def test_second_run_of_a_replayed_handler_gets_earlier_answers_without_new_input_requests() -> None:
    async with floor() as this:
        sent, answers = list[list[str]](), list[Any]()
        scope = this.running(LATEST_MODERN)
        scope.rounds = Rounds(scope, lambda questions: sent.append([each.key for each in questions]), {})
        this.nursery.start_soon(ask, scope, answers)
        await wait_all_tasks_blocked()
        [[key]] = sent
        assert (this.runner.parked, answers) == ([], [])
        again = this.running(LATEST_MODERN)
        again.rounds = Rounds(again, lambda _: pytest.fail("asked"), {key: {"roots": [1]}})
        await ask(again, answers)
        assert answers == [{"roots": [1]}]


# The end


async def test_finished_request_releases_the_objects_it_referenced(autojump_clock: MockClock) -> None:
    class Kept:
        pass

    async with floor() as this:
        kept = Kept()
        watched = weakref.ref(kept)
        scope = this.running(LATEST_MODERN, progressToken="p", **{REMAINING_MS: 3000, LOG_LEVEL: "info"})
        scope.run_again(kept, "again")
        del kept
        gc.collect()
        gc.disable()
        try:
            scope.detach()
            assert watched() is None
            assert (scope.rounds, scope.answered_instead, scope.handler_task) == (None, None, None)
        finally:
            gc.enable()
