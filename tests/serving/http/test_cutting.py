"""A connection that is cut at any byte of a request or an answer: the handler learns of it by the rules of its era, and
nothing is left."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.serving.http.raw import LEGACY, Connection, events_in, modern, request_bytes
from tests.serving.http.scenes import MemoryEndpoint, Scene, call, in_memory, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(scene.server) as one:
        yield one


class Traces:
    """What an endpoint holds for its clients, to be compared with what it held at first."""

    def __init__(self, endpoint: MemoryEndpoint) -> None:
        self._endpoint = endpoint
        self._tasks = 0

    async def begin(self) -> None:
        await wait_all_tasks_blocked()
        self._tasks = trio.lowlevel.current_statistics().tasks_living

    async def assert_none(self) -> None:
        await wait_all_tasks_blocked()
        front = self._endpoint.front
        modern_side, sessions = front._endpoint._modern, front._endpoint._sessions._sessions
        assert not front._connections
        assert not modern_side._open_streams
        assert not modern_side.state.inbound
        for session in sessions.values():
            assert not session.posts
            assert not session._streams
            assert not session._connection.state.inbound
        assert trio.lowlevel.current_statistics().tasks_living == self._tasks


def modern_call(tool: str, **arguments: Any) -> bytes:
    headers, body = modern("tools/call", {"name": tool, "arguments": arguments})
    return request_bytes("POST", {**headers}, body)


async def read_exactly(connection: Connection, count: int) -> bytes:
    """Read so many bytes of a lockstep connection, or all up to its end."""
    received = b""
    while len(received) < count and (data := await connection.stream.receive_some(count - len(received))):
        received += data
    return received


async def asked(endpoint: MemoryEndpoint, request: bytes) -> Connection:
    """Return a connection whose server has read ``request``, and has written nothing that was not read."""
    connection = await endpoint.connect(lockstep=True)
    await connection.stream.send_all(request)
    return connection


async def test_modern_request_never_starts_or_is_cancelled_if_the_client_disconnects_after_any_byte(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    traces = Traces(endpoint)
    await traces.begin()
    for runs in (True, False):  # with the handler running before the cut, and not
        request = modern_call("wait", name=f"{runs}")
        for count in range(len(request) + 1):
            connection = await endpoint.connect()
            await connection.stream.send_all(request[:count])
            if count == len(request) and runs:
                await scene[f"{runs}"].started.wait()
            elif count % 2:
                await wait_all_tasks_blocked()
            await connection.aclose()
            await traces.assert_none()
            if count < len(request):
                assert not scene[f"{runs}"].runs
        journal = scene[f"{runs}"]
        assert journal.ended.is_set() == bool(journal.runs)
        if runs:
            assert journal.cancellation is not None
            assert journal.cancellation.cause is CancelCause.DISCONNECT


async def test_client_that_disconnects_at_any_byte_of_a_modern_response_stream_cancels_the_handler(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    traces = Traces(endpoint)
    await traces.begin()
    count, told = 0, False
    while not told:  # up to the byte with which the first event is whole
        name = f"at {count}"
        connection = await asked(endpoint, modern_call("wait", name=name, speaks=True))
        await scene[name].started.wait()
        received = await read_exactly(connection, count)
        told = received.endswith(b"}\n\n\r\n")
        await connection.aclose()
        await traces.assert_none()
        cancellation = scene[name].cancellation
        assert cancellation is not None
        assert cancellation.cause is CancelCause.DISCONNECT
        assert scene[name].ended.is_set()
        count += 1
    assert count > 300


@pytest.mark.parametrize("tool", ["echo", "levels"], ids=["json", "a stream"])
async def test_client_that_disconnects_during_a_modern_response_leaves_no_state_in_the_server(
    endpoint: MemoryEndpoint, tool: str
) -> None:
    arguments = {"text": "x"} if tool == "echo" else {}
    request = modern_call(tool, **arguments)
    traces = Traces(endpoint)
    await traces.begin()
    whole = await asked(endpoint, request)
    whole.expect()
    answer = await whole.answer()
    await whole.aclose()
    size = len(answer.body) + sum(len(name) + len(value) + 4 for name, value in answer.headers.items())
    for count in range(size):
        connection = await asked(endpoint, request)
        await read_exactly(connection, count)
        await connection.aclose()
        await traces.assert_none()
    assert (await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "on"}})).status == 200


async def test_legacy_request_runs_only_if_received_completely_and_continues_after_a_disconnect(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    request = request_bytes("POST", session, call("wait", name="mine"))
    traces = Traces(endpoint)
    await traces.begin()
    for count in range(len(request) + 1):
        connection = await endpoint.connect()
        await connection.stream.send_all(request[:count])
        if count % 2:
            await wait_all_tasks_blocked()
        await connection.aclose()
        if count < len(request):
            await traces.assert_none()
            assert not scene["mine"].runs
    await scene["mine"].started.wait()
    assert not scene["mine"].ended.is_set()
    scene["mine"].may_go_on.set()
    await scene["mine"].ended.wait()
    assert scene["mine"].cancellation is None
    await traces.assert_none()


async def test_htt_01_legacy_response_is_replayed_without_duplicates_after_a_disconnect_at_any_byte(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = {**await endpoint.initialize(), "MCP-Protocol-Version": LEGACY}
    traces = Traces(endpoint)
    await traces.begin()
    count, told, over = 0, False, False
    while not over:
        name = f"at {count}"
        connection = await asked(endpoint, request_bytes("POST", session, call("steps", count, name=name)))
        await scene[name].started.wait()
        if told or count % 2:
            scene[name].may_go_on.set()  # else the handler goes on after the cut
        received = await read_exactly(connection, count)
        told = told or b'"one"' in received
        over = received.endswith(b"\r\n0\r\n\r\n")
        await connection.aclose()
        scene[name].may_go_on.set()
        await traces.assert_none()
        first = events_in(whole_events(received))
        if first:
            last_id = first[-1].id
            back = await endpoint.get(session, last_id)
            answer = await back.answer()
            await back.aclose()
            has_all = bool(first[-1].data) and "result" in first[-1].data
            assert answer.status == (204 if has_all else 200)  # 204: nothing is left
            first += answer.events
            told = [event.data for event in first if event.data is not None]
            assert [each["params"]["data"] for each in told[:-1]] == ["one", "two"]
            assert (told[-1]["id"], text_of(told[-1])) == (count, "three")
            assert len({event.id for event in first}) == len(first)
        await traces.assert_none()
        count += 1
    assert count > 400


def whole_events(received: bytes) -> bytes:
    """Return the events in an answer that was cut off: what is behind the last empty line is none."""
    _, _, chunked = received.partition(b"\r\n\r\n")
    body, rest = b"", chunked
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return b"".join(event + b"\n\n" for event in body.split(b"\n\n")[:-1])
