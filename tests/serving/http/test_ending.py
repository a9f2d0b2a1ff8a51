"""How a server over HTTP ends: what runs is finished or told, streams end properly, and no client holds up the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.memory_listener import ListenedEndpoint, listening
from tests.serving.http.raw import Answer, Connection, Endpoint, message, modern, request_bytes
from tests.serving.http.scenes import Scene, call, connections_to, messages_in, next_message, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Limits, serve_http

DRAIN = 2.0
LISTEN = {"notifications": {"toolsListChanged": True}}


@pytest.fixture
def scene() -> Scene:
    return Scene(Limits(drain_timeout=DRAIN))


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[ListenedEndpoint]:
    async with listening(scene.server) as one:
        yield one


async def ends_within(endpoint: ListenedEndpoint, seconds: float) -> None:
    """Send SIGTERM, and see the end in time."""
    signal.raise_signal(signal.SIGTERM)
    with trio.fail_after(seconds):
        await endpoint.over.wait()


async def open_all(endpoint: Endpoint, count: int) -> list[tuple[str, Connection]]:
    """Return so many streams of ``subscriptions/listen``, and so many of legacy sessions, all open."""
    streams: list[tuple[str, Connection]] = []
    for number in range(count):
        connection = await endpoint.connect()
        headers, body = modern("subscriptions/listen", LISTEN, number)
        await connection.send("POST", {**headers}, body)
        assert (await connection.head()).status == 200
        assert (await next_message(connection))["method"] == "notifications/subscriptions/acknowledged"
        streams.append(("listen", connection))
        session = await endpoint.initialize()
        connection = await endpoint.connect()
        await connection.send("GET", session)
        assert (await connection.head()).status == 200
        streams.append(("get", connection))
    return streams


async def test_mod_02_shd_02_server_shutdown_ends_all_open_streams_at_once_and_completely(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene
) -> None:
    streams = await open_all(endpoint, 10)
    ends: list[tuple[str, list[str]]] = []

    async def read(kind: str, connection: Connection) -> None:
        told = await rest_of(connection)  # the parser fails where the last chunk is missing
        ends.append((kind, [each.get("method", "result") for each in told]))
        assert await connection.stream.receive_some(1) == b""

    async with trio.open_nursery() as nursery:
        for kind, connection in streams:
            nursery.start_soon(read, kind, connection)
        scene.server.remove_tool("echo")
        await ends_within(endpoint, 1)
    assert [told for kind, told in ends if kind == "listen"] == [
        ["notifications/tools/list_changed", "notifications/cancelled", "result"]
    ] * 10
    assert [told for kind, told in ends if kind == "get"] == [["notifications/tools/list_changed"]] * 10


@pytest.mark.parametrize("what", ["nothing", "an answer", "half a head", "half a body", "a stream", "a refusal"])
async def test_shd_02_open_idle_connections_do_not_delay_shutdown(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, what: str
) -> None:
    connection = await endpoint.connect()
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
    request = request_bytes("POST", {**headers}, body)
    match what:
        case "an answer":
            assert (await connection.modern("tools/list")).status == 200
        case "half a head":
            await connection.stream.send_all(request[:40])
        case "half a body":
            await connection.stream.send_all(request[:-1])
        case "a stream":
            await open_all(endpoint, 1)
        case "a refusal":
            await connection.stream.send_all(b"POST /mcp HTTP/1.1\r\n\r\n")
        case _:
            pass
    await wait_all_tasks_blocked()
    await ends_within(endpoint, 1)


async def test_client_that_does_not_read_its_response_does_not_delay_shutdown(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene
) -> None:
    connection = await endpoint.connect(lockstep=True)
    headers, body = modern("tools/call", {"name": "flood", "arguments": {"name": "f", "count": 10**9}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.stream.send_all, request_bytes("POST", {**headers}, body))
    await scene["f"].started.wait()
    await wait_all_tasks_blocked()
    await ends_within(endpoint, DRAIN + 1)
    cancellation = scene["f"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.SHUTDOWN


async def test_session_with_many_undelivered_messages_does_not_delay_shutdown(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene
) -> None:
    session = await endpoint.initialize()
    for number in range(300):
        uri = f"scene:thing{number}" + "x" * 1000
        scene.server.resource(uri, name=str(number))(trio.lowlevel.checkpoint)
        await endpoint.ask("POST", session, message("resources/subscribe", {"uri": uri}, 1))
        scene.server.resource_updated(uri)
    await wait_all_tasks_blocked()
    await ends_within(endpoint, 1)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "with a stream"])
async def test_shd_01_requests_that_run_at_shutdown_finish_or_are_cancelled_after_drain_timeout(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene, era: str, speaks: bool
) -> None:
    session = await endpoint.initialize("2025-06-18")

    async def posted(name: str) -> Connection:
        body: Any = call("wait", name, name=name, speaks=speaks)
        headers = {**session}
        if era == "modern":
            params = {"name": "wait", "arguments": {"name": name, "speaks": speaks}}
            good, body = modern("tools/call", params, name)
            headers = {**good}
        connection = await endpoint.connect()
        await connection.send("POST", headers, body)
        await scene[name].started.wait()
        return connection

    short, long = await posted("short"), await posted("long")
    answers: dict[str, Answer] = {}

    async def read(name: str, connection: Connection) -> None:
        answers[name] = await connection.answer()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "short", short)
        nursery.start_soon(read, "long", long)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(DRAIN / 2)
        scene["short"].may_go_on.set()
        await endpoint.over.wait()
    assert trio.current_time() - began <= DRAIN + 0.5
    assert text_of(messages_in(answers["short"])[-1]) == "short is done"
    cancellation = scene["long"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.SHUTDOWN
    if speaks:
        told = messages_in(answers["long"])
        assert (answers["long"].status, [each["method"] for each in told]) == (200, ["notifications/message"])
    else:
        assert answers["long"].status == 503


@pytest.mark.parametrize("kind", ["modern", "legacy", "initialize", "listen"])
async def test_shd_01_request_sent_during_shutdown_gets_status_503(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene, kind: str
) -> None:
    session = await endpoint.initialize()
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "running"}})
    running = await endpoint.connect()
    await running.send("POST", {**headers}, body)
    await scene["running"].started.wait()
    request = {
        "modern": lambda: modern("tools/call", {"name": "wait", "arguments": {"name": "late"}}),
        "listen": lambda: modern("subscriptions/listen", LISTEN),
        "legacy": lambda: (session, call("wait", name="late")),
        "initialize": lambda: ({**session, "Mcp-Session-Id": None}, message("initialize", {}, 1)),
    }[kind]()
    data = request_bytes("POST", *request)
    late = await endpoint.connect()
    await late.stream.send_all(data[:-1])
    await wait_all_tasks_blocked()
    signal.raise_signal(signal.SIGTERM)
    await wait_all_tasks_blocked()
    await late.stream.send_all(data[-1:])
    late.expect()
    answer = await late.answer()
    assert answer.status == 503
    assert answer.headers["connection"] == "close"
    assert int(answer.headers["retry-after"]) > 0
    assert not scene["late"].started.is_set()
    assert not scene["running"].ended.is_set()
    await endpoint.over.wait()


@pytest.mark.parametrize("health", [False, True])
@pytest.mark.parametrize("sent", ["all", "nothing yet", "half of the head"])
async def test_server_serves_requests_on_connections_that_wait_to_be_accepted_when_sigterm_arrives(
    health: bool, sent: str
) -> None:
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    data = request_bytes("POST", {**headers}, body)
    at = {"all": len(data), "nothing yet": 0, "half of the head": 50}[sent]
    answers = list[bytes]()

    async def answered(stream: trio.SocketStream) -> None:
        async with stream:
            answers.append(b"".join([part async for part in stream]))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(serve_http, Scene().server, "127.0.0.1", 0, health=health)
            listeners = await nursery.start(start)
            address = listeners[0].socket.getsockname()
            ends = [socket.create_connection(address) for _ in range(20)]  # which no task could accept until now
            for end in ends:
                end.sendall(data[:at])
            signal.raise_signal(signal.SIGTERM)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            for end in ends:
                end.sendall(data[at:])
                end.setblocking(False)
                nursery.start_soon(answered, trio.SocketStream(trio.socket.from_stdlib_socket(end)))
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 20


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_handler_sees_cancel_cause_parent_if_the_scope_around_the_http_server_is_cancelled(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene, era: str
) -> None:
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "mine"}})
    if era == "legacy":
        headers, body = await endpoint.initialize(), call("wait", name="mine")
    connection = await endpoint.connect()
    await connection.send("POST", {**headers}, body)
    await scene["mine"].started.wait()
    endpoint.scope.cancel(reason="the application has had enough")
    await endpoint.over.wait()
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.PARENT


async def test_second_shutdown_signal_cancels_requests_before_drain_timeout(
    endpoint: ListenedEndpoint, autojump_clock: MockClock, scene: Scene
) -> None:
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "mine"}})
    connection = await endpoint.connect()
    await connection.send("POST", {**headers}, body)
    await scene["mine"].started.wait()
    signal.raise_signal(signal.SIGTERM)
    await wait_all_tasks_blocked()
    assert not scene["mine"].ended.is_set()
    await ends_within(endpoint, 0.5)
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.SHUTDOWN
    assert (await connection.answer()).status == 503


SERVER = """
import trio
from functools import partial
from tests.serving.http.scenes import Scene
from trio_mcp import Limits, serve_http

async def main():
    async with trio.open_nursery() as nursery:
        server = Scene(Limits(drain_timeout=100)).server
        listeners = await nursery.start(partial(serve_http, server, "127.0.0.1", 0))
        print(listeners[0].socket.getsockname()[1], flush=True)

trio.run(main)
"""


@pytest.mark.commands
async def test_shd_02_server_process_with_200_streams_ends_gracefully_at_sigterm() -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", SERVER], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None

    async with process.stdout, process.stderr, connections_to(int(await process.stdout.receive_some())) as endpoint:
        streams = await open_all(endpoint, 100)
        await (await endpoint.connect()).modern("tools/list")  # which then stays, as in a client's pool
        await (await endpoint.connect()).stream.send_all(b"POST /mcp HTTP/1.1\r\n")
        with trio.fail_after(PATIENCE):  # the time to drain is longer
            async with trio.open_nursery() as nursery:
                for _, connection in streams:
                    nursery.start_soon(rest_of, connection)  # the parser fails where the last chunk is missing
                process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert await process.stderr.receive_some() == b""
