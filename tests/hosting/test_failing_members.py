"""Members fail and hang, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.hosting.members import describe, hangs, in_memory, refuses, serves, until
from tests.interaction.client.raw import RawPeer
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import ConnectionLost, KeepAlive, PeerError, Server
from trio_mcp.hosting import MemberDescription, MemberState, MemberUnavailable, NotInCatalogue, open_group


@pytest.mark.parametrize(
    ("script", "error"),
    [(refuses, PeerError), (RawPeer.close, ConnectionLost), (hangs, ConnectionLost)],
    ids=["refuses", "dies", "hangs"],
)
async def test_server_that_does_not_start_fails_only_group_calls_to_that_server(
    script: Callable[[RawPeer], Any], error: type[Exception], autojump_clock: MockClock
) -> None:
    async with open_group({"bad": describe(script, connect_timeout=5), "good": in_memory()}) as group:
        with pytest.raises(MemberUnavailable) as caught:
            await group.client("bad")
        assert caught.value.member == "bad"
        assert type(caught.value.error) is error
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
        await trio.sleep(100)
        assert group.statuses["bad"].state == MemberState.FAILED


async def test_server_that_crashes_fails_only_group_calls_to_that_server(autojump_clock: MockClock) -> None:
    outcomes: list[Any] = []
    async with open_group({"bad": describe(serves("wait", "die")), "good": in_memory()}) as group:

        async def call(name: str, **arguments: Any) -> None:
            try:
                outcomes.append((await group.call_tool(name, arguments)).text)
            except Exception as error:
                outcomes.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "bad__wait")
            nursery.start_soon(lambda: call("good__sleep", seconds=50))
            await wait_all_tasks_blocked()
            nursery.start_soon(call, "bad__die")
        assert outcomes == [ConnectionLost, ConnectionLost, "slept"]
        with pytest.raises(MemberUnavailable, match=r"'bad' has failed: the peer closed the connection"):
            await group.call_tool("bad__wait")


async def test_server_that_hangs_times_out_only_group_calls_to_that_server(autojump_clock: MockClock) -> None:
    async with open_group({"bad": describe(serves("wait"), call_timeout=5), "good": in_memory()}) as group:
        with pytest.raises(trio.TooSlowError):
            await group.call_tool("bad__wait")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"


async def test_group_marks_a_server_as_failed_that_answers_no_pings(autojump_clock: MockClock) -> None:
    keep_alive = KeepAlive(interval=10, timeout=1)
    async with open_group({"bad": describe(serves()), "good": in_memory()}, keep_alive=keep_alive) as group:
        status = await until(group.watch(), "bad", MemberState.FAILED)
        assert str(status.error) == "the server did not answer 2 pings of 1 s each"
        await trio.sleep(100)
        assert (await group.call_tool("good__greet")).text == "hello from greeter"


async def test_group_marks_a_server_as_failed_with_the_exception_its_lifespan_raises(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def lifespan(_: Server) -> Any:
        raise LookupError("no database")

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan))}) as group:
        with pytest.raises(MemberUnavailable, match="no database") as caught:
            await group.client("bad")
        assert type(caught.value.error) is LookupError
    assert "member bad failed" in caplog.text
    caplog.clear()


async def test_group_marks_a_server_as_failed_at_connect_timeout_if_its_lifespan_hangs(
    autojump_clock: MockClock,
) -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        await trio.sleep_forever()
        yield

    bad = MemberDescription(Server("bad", lifespan=lifespan), options={"connect_timeout": 5})
    async with open_group({"bad": bad}) as group:
        with pytest.raises(MemberUnavailable, match="was not ready within 5 s"):
            await group.client("bad")
        assert trio.current_time() == pytest.approx(5)


async def test_server_whose_lifespan_raises_at_shutdown_does_not_affect_other_servers_of_the_group(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        try:
            yield
        finally:
            raise LookupError("the database is gone")

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan)), "good": in_memory()}) as group:
        await group.settled()
        await group.remove("bad")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
    assert "the database is gone" in caplog.text
    caplog.clear()


async def test_task_of_a_server_that_fails_during_shutdown_does_not_affect_other_servers_of_the_group(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("the index is gone")

    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_at_the_end)
            yield
            nursery.cancel_scope.cancel()

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan)), "good": in_memory()}) as group:
        await group.settled()
        await group.remove("bad")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
    assert "the index is gone" in caplog.text
    caplog.clear()


async def test_tmo_07_timeout_error_response_and_connection_loss_raise_different_exception_types(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await peer.error(await peer.until("tools/call"), -32001, "Request timed out")
        await peer.until("tools/call")
        await peer.close()

    async with open_group({"a": describe(script, call_timeout=5)}) as group:
        client = await group.client("a")
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("timeout")
        with pytest.raises(PeerError, match="Request timed out"):
            await client.call_tool("peer error")
        with pytest.raises(ConnectionLost):
            await client.call_tool("loss")
        with pytest.raises(MemberUnavailable):
            await group.client("a")
    kinds = (trio.Cancelled, trio.TooSlowError, PeerError, ConnectionLost, MemberUnavailable, NotInCatalogue)
    assert not any(issubclass(one, other) for one in kinds for other in kinds if one is not other)
