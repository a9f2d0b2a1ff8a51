"""The life of one connection: how it ends, what it waits for then, and what its calls and handlers learn."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from tests.runtime.hosted import HostedConnection
from tests.state.peers import modern
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.jsonrpc.codec import encode
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.cancellation import CancelCause
from trio_mcp.runtime.connection import Connection
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.outbound import CallSettings
from trio_mcp.runtime.peer import SOLE_CLIENT, UNKNOWN_PEER, Peer
from trio_mcp.runtime.requests.host import LATER, RequestHost
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.runtime.transport import ConnectionLost, UnreadableFrame
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import NotificationReceived
from trio_mcp.transports.lines import MemoryTransport, memory_transport_pair


class Handler:
    """Takes as long for a request as that says, and as long to clean up; a stream ends with the connection."""

    seal = None

    def __init__(self) -> None:
        self.cancels: list[tuple[Any, CancelCause, str | None, float]] = []
        self.begun: list[Any] = []
        self.told: list[Any] = []
        self.connection: Any = None

    def answer_now(self, request: Any, exchange: Any) -> Any:
        return LATER

    async def answer(self, scope: RequestScope) -> Any:
        params = scope.request.params
        self.begun.append(scope.request.id)
        if scope.request.method.streams:
            await self.connection.until_ending()
            return {}
        try:
            await trio.sleep(params.get("seconds", 0))
        except trio.Cancelled:
            cancellation = scope.cancellation
            assert cancellation is not None
            self.cancels.append((scope.request.id, cancellation.cause, cancellation.reason, trio.current_time()))
            with trio.CancelScope(shield=True):
                await trio.sleep(params.get("cleanup", 0))
            raise
        return {}

    def wants(self, event: NotificationReceived) -> bool:
        return True

    async def notified(self, event: NotificationReceived) -> None:
        self.told.append(event.method.name)


class Served:
    """A connection under test, and the bare wire to it."""

    def __init__(self, limits: Limits, peer: Peer, role: Any = "server", **more: Any) -> None:
        self.wire, self.theirs = memory_transport_pair()
        theirs: Any = self.theirs
        self.handler = Handler()
        state = ConnectionState(role)
        state.revision, state.initialized = LATEST_LEGACY, True
        self.connection: Connection = HostedConnection(
            theirs, state, self.handler, RequestHost(limits), peer=peer, **more
        )
        self.handler.connection = self.connection
        self.ended: float | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.connection.run(task_status=task_status)
        self.ended = trio.current_time()

    async def call(self, number: int, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        await self.wire.send(json.dumps(message).encode() + b"\n")
        await wait_all_tasks_blocked()

    async def heard(self) -> list[Any]:
        """What was sent until the end, or until there is no more for now."""
        return [message async for message in messages_of(self.wire)]


async def messages_of(wire: MemoryTransport) -> AsyncGenerator[Any]:
    with suppress(trio.EndOfChannel, ConnectionLost):
        while True:
            await wait_all_tasks_blocked()
            with trio.move_on_after(0) as scope:
                line = await wire.receive()
            if scope.cancelled_caught:
                return
            yield json.loads(line)


@asynccontextmanager
async def serving(
    limits: Limits | None = None, peer: Peer = UNKNOWN_PEER, role: Any = "server", **more: Any
) -> AsyncGenerator[Served]:
    this = Served(limits or Limits(drain_timeout=10), peer, role, **more)
    async with trio.open_nursery() as nursery:
        await nursery.start(this.run)
        yield this
        nursery.cancel_scope.cancel()


# The end of input, and of the server


async def test_accepted_requests_are_answered_before_the_connection_closes(autojump_clock: MockClock) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=3)
        assert not this.connection.is_ending
        this.connection.shut_down("over")
        assert this.connection.is_ending
        await trio.sleep(20)
        assert this.ended == begun + 3
        assert [each["id"] for each in await this.heard()] == [1]
        assert this.handler.cancels == []


async def test_request_that_still_runs_at_the_drain_timeout_is_cancelled(autojump_clock: MockClock) -> None:
    for seconds, more in ((10, {}), (4, {"drain_timeout": 4}), (0, {"drain_timeout": 0.0})):
        async with serving() as this:
            begun = trio.current_time()
            await this.call(1, seconds=1000)
            this.connection.shut_down("the server is stopped", **more)
            await trio.sleep(50)
            [(number, cause, reason, at)] = this.handler.cancels
            assert (number, cause, reason) == (1, CancelCause.SHUTDOWN, "the server is stopped")
            # streams are waited for a moment even where there is no time to drain, but none is open
            assert at == this.ended == begun + seconds
            assert await this.heard() == []


async def test_request_that_runs_long_after_the_end_of_input_is_cancelled_because_the_connection_ended(
    autojump_clock: MockClock,
) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=1000)
        await this.wire.aclose()
        await trio.sleep(50)
        assert this.handler.cancels == [(1, CancelCause.SHUTDOWN, "the connection has ended", begun + 10)]


async def test_second_shutdown_cancels_running_requests_immediately(autojump_clock: MockClock) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=1000)
        this.connection.shut_down("over")
        await trio.sleep(3)
        this.connection.shut_down("now")
        await trio.sleep(50)
        [(_, cause, reason, at)] = this.handler.cancels
        assert (cause, reason, at) == (CancelCause.SHUTDOWN, "now", begun + 3)


async def test_new_requests_are_refused_while_the_connection_ends(autojump_clock: MockClock) -> None:
    async with serving() as this:
        await this.call(1, seconds=5)
        this.connection.shut_down("over")
        await this.call(2)
        [refused] = await this.heard()
        assert (refused["id"], refused["error"]["code"]) == (2, -31000)


async def test_connection_ends_after_the_last_handler_has_cleaned_up(autojump_clock: MockClock) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=1000, cleanup=7)
        this.connection.shut_down("over", drain_timeout=0.0)
        await trio.sleep(50)
        assert this.ended == begun + 7


async def test_connection_close_waits_until_cancelled_handlers_have_cleaned_up(autojump_clock: MockClock) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=1000, cleanup=2)
        await this.connection.close("over")
        assert trio.current_time() == begun + 2
        await this.connection.close("over")
        assert trio.current_time() == begun + 2
        [(_, cause, reason, _)] = this.handler.cancels
        assert (cause, reason) == (CancelCause.SHUTDOWN, "over")


async def test_connection_that_is_shut_down_before_it_runs_closes_immediately(autojump_clock: MockClock) -> None:
    this = Served(Limits(), UNKNOWN_PEER)
    this.connection.shut_down("over")
    begun = trio.current_time()
    await this.run()
    assert this.ended == begun


async def test_handler_threads_have_a_shorter_cleanup_grace_during_shutdown(autojump_clock: MockClock) -> None:
    limits = Limits(cleanup_grace=50, shutdown_grace=7)
    for end, seconds in (
        (lambda connection: connection.shut_down("over", drain_timeout=0.0), 7),
        (lambda connection: connection.shut_down("over", hurry=True), 0.3),
        (lambda connection: connection.lose(ConnectionLost("gone")), 50),
    ):
        async with serving(limits) as this:
            await this.call(1, seconds=1000)
            end(this.connection)
            await wait_all_tasks_blocked()
            assert this.connection._runner.graces.seconds == seconds
    async with serving(limits) as this:
        this.connection.is_only = True
        this.connection.lose(ConnectionLost("gone"))
        assert this.connection._runner.graces.seconds == 7


async def test_immediate_shutdown_cancels_requests_without_drain_time(autojump_clock: MockClock) -> None:
    async with serving() as this:
        begun = trio.current_time()
        await this.call(1, seconds=1000)
        this.connection.shut_down("now", hurry=True)
        await trio.sleep(50)
        [(_, cause, _, at)] = this.handler.cancels
        assert (cause, at, this.ended) == (CancelCause.SHUTDOWN, begun, begun)


# The loss of the connection


async def test_connection_that_is_lost_while_it_sends_its_last_messages_closes_immediately(
    autojump_clock: MockClock,
) -> None:
    async with serving() as this:
        begun = trio.current_time()
        for _ in range(2):  # the first fills the pipe, the second waits in the writer's hands
            this.connection.notify("notifications/message", {"data": "x" * 70_000})
            await wait_all_tasks_blocked()
        this.connection.shut_down("over")
        await trio.sleep(1)
        assert this.ended is None
        await this.wire.aclose()
        await trio.sleep(20)
        assert this.ended == begun + 1


async def test_outgoing_messages_of_a_lost_connection_are_dropped(autojump_clock: MockClock) -> None:
    async with serving() as this:
        await this.call(1, seconds=1000, cleanup=3)
        await this.wire.aclose()
        this.connection.lose(ConnectionLost("gone"))
        this.connection.outbox.put(b"late\n")
        assert this.connection.outbox.size == 0
        await wait_all_tasks_blocked()
        assert this.ended is None


async def test_lost_connection_cancels_requests_and_fails_calls(
    autojump_clock: MockClock,
) -> None:
    async with serving() as this:
        begun = trio.current_time()
        failures = list[BaseException]()

        async def ask() -> None:
            try:
                await this.connection.request("roots/list", None, LATEST_LEGACY)
            except ConnectionLost as lost:
                failures.append(lost)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await this.call(1, seconds=1000)
            error = ConnectionLost("broken pipe", exit_status=3)
            this.connection.lose(error)
            this.connection.lose(ConnectionLost("another"))
        await trio.sleep(50)
        assert this.connection.lost is error
        assert error.__traceback__ is None
        assert [str(failure) for failure in failures] == [str(error)]
        assert this.handler.cancels == [(1, CancelCause.DISCONNECT, "broken pipe", begun)]
        assert this.ended == begun
        with pytest.raises(ConnectionLost, match="broken pipe"):
            await this.connection.request("roots/list", None, LATEST_LEGACY)


async def test_end_of_input_fails_outgoing_calls_but_finishes_accepted_requests(
    autojump_clock: MockClock,
) -> None:
    this, failures = Served(Limits(drain_timeout=10), UNKNOWN_PEER), list[str]()

    async def ask() -> None:
        try:
            await this.connection.request("roots/list", None, LATEST_LEGACY)
        except ConnectionLost as lost:
            failures.append(str(lost))

    eof, receive = trio.Event(), this.theirs.receive

    async def receive_until_eof() -> Any:
        if this.handler.begun:
            await eof.wait()
            raise trio.EndOfChannel
        return await receive()

    this.theirs.receive = receive_until_eof
    async with trio.open_nursery() as nursery:
        await nursery.start(this.run)
        nursery.start_soon(ask)
        await this.call(1, seconds=3)
        await this.wire.send(b"[]\n")
        await wait_all_tasks_blocked()
        assert failures == []
        eof.set()
        await wait_all_tasks_blocked()
        assert (failures, this.connection.is_ending, this.connection.lost) == (
            ["the peer closed the connection"], True, None
        )  # fmt: skip
    assert this.ended == 3
    assert [each["id"] for each in await this.heard() if "result" in each] == [1]


async def test_call_made_after_the_connection_has_ended_fails_with_connection_lost(autojump_clock: MockClock) -> None:
    async with serving() as this:
        await this.connection.close("over")
        with pytest.raises(ConnectionLost, match="the connection was closed"):
            await this.connection.request("roots/list", None, LATEST_LEGACY)


async def test_connection_cancelled_by_the_application_gives_its_requests_the_cancel_cause_parent(
    autojump_clock: MockClock,
) -> None:
    async with serving() as this:
        await this.call(1, seconds=1000)
    [(_, cause, reason, _)] = this.handler.cancels
    assert (cause, reason) == (CancelCause.PARENT, None)


# The last replies


async def test_connection_that_closes_sends_its_last_responses_to_a_slow_peer(autojump_clock: MockClock) -> None:
    this = Served(Limits(drain_timeout=10), UNKNOWN_PEER)
    async with trio.open_nursery() as nursery:
        await nursery.start(this.run)
        await this.call(1)
        begun = trio.current_time()
        this.connection.shut_down("over")
        await trio.sleep(1)
        assert this.ended == begun
        assert [each["id"] for each in await this.heard()] == [1]


# Reading


async def test_call_fails_if_its_response_is_skipped_as_too_long_and_reading_continues(
    autojump_clock: MockClock,
) -> None:
    unread = list[tuple[str, bytes]]()
    this = Served(Limits(), UNKNOWN_PEER, "client", on_unreadable=lambda why, head: unread.append((why, bytes(head))))
    receive, frames = this.theirs.receive, [UnreadableFrame("too long", b"xxxx", b"yyyy")]

    async def skip_one() -> Any:
        if frames:
            raise frames.pop()
        return await receive()

    this.theirs.receive = skip_one
    async with trio.open_nursery() as nursery:
        await nursery.start(this.run)
        await wait_all_tasks_blocked()
        assert unread == [("too long", b"xxxx")]
        await this.wire.send(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}\n')
        assert [each["id"] for each in await this.heard()] == [1]
        nursery.cancel_scope.cancel()


async def test_batch_longer_than_max_batch_is_refused() -> None:
    async with serving(Limits(max_batch=2)) as this:
        line = json.dumps([{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(3)])
        await this.wire.send(line.encode() + b"\n")
        [reply] = await this.heard()
        assert reply["error"]["code"] == -32600


async def test_connection_passes_list_changes_and_logs_to_its_handler(autojump_clock: MockClock) -> None:
    async with serving(role="client") as this:
        for method in ("notifications/tools/list_changed", "notifications/message"):
            await this.wire.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": {}}).encode() + b"\n")
        await wait_all_tasks_blocked()
        assert sorted(this.handler.told) == ["notifications/message", "notifications/tools/list_changed"]
        event = NotificationReceived(LATEST_LEGACY._methods["notifications/tools/list_changed"], {}, LATEST_LEGACY)
        this.connection.notified(event, 10)
        await wait_all_tasks_blocked()
        assert len(this.handler.told) == 3


async def test_notification_that_the_server_gives_to_a_connection_is_sent_to_the_peer(
    autojump_clock: MockClock,
) -> None:
    async with serving() as this:
        this.connection.notify("notifications/tools/list_changed")
        await this.connection.room()
        [message] = await this.heard()
        assert message["method"] == "notifications/tools/list_changed"


# Settings


@pytest.mark.parametrize("tell", [True, False])
async def test_connection_sends_deadlines_and_cancels_only_if_its_call_settings_say_so(
    autojump_clock: MockClock, tell: bool
) -> None:
    async with serving(role="client", calls=CallSettings(tell_deadlines=tell, send_cancels=tell)) as this:
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(this.connection.request, "tools/call", {"name": "x"}, LATEST_LEGACY)
                [request] = await this.heard()
                assert ("_meta" in request["params"]) is tell
        assert len(await this.heard()) == (1 if tell else 0)


def test_default_call_settings_enable_sending_deadlines_and_cancels() -> None:
    assert CallSettings() == CallSettings(tell_deadlines=True, send_cancels=True)


async def test_new_connection_object_is_stateful_and_neither_ending_nor_lost() -> None:
    for peer in (SOLE_CLIENT, UNKNOWN_PEER):
        this = Served(Limits(), peer)
        assert (this.connection.peer, this.connection.stateless, this.connection.is_ending, this.connection.lost) == (
            peer, False, False, None
        )  # fmt: skip
        assert not this.connection.is_only


async def test_listen_stream_gets_its_result_even_if_the_connection_closes_without_drain_time(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    async with serving() as this:
        await this.wire.send(encode(modern(1, "subscriptions/listen", notifications={})))
        await wait_all_tasks_blocked()
        this.connection.shut_down("over", drain_timeout=0.0)
        [reply] = await this.heard()
        assert reply["id"] == 1
        assert "result" in reply
