"""Hostile clients over real sockets: each gets its status, or nothing, and costs nobody else anything."""

from __future__ import annotations

import resource
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.raw import BASE, Answer, modern, request_bytes, served
from tests.serving.http.scenes import (
    Scene,
    SocketEndpoint,
    call,
    in_memory,
    messages_in,
    next_message,
    over_sockets,
    text_of,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Limits, Server

HALF_OPEN = 2000


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[SocketEndpoint]:
    async with over_sockets(scene.server) as one:
        yield one


def modern_call(tool: str, more: str = "", **arguments: Any) -> bytes:
    """Return a call, with ``more`` header lines."""
    headers, body = modern("tools/call", {"name": tool, "arguments": arguments})
    data = request_bytes("POST", {**headers}, body)
    return data.replace(b"\r\n\r\n", b"\r\n" + more.encode("latin-1") + b"\r\n", 1)


async def assert_others_are_served(endpoint: SocketEndpoint) -> None:
    """A newcomer's call is answered."""
    with trio.fail_after(PATIENCE):
        stream = await trio.open_tcp_stream("127.0.0.1", endpoint.port)
        async with stream:
            await stream.send_all(modern_call("echo", text="here"))
            assert b"200 OK" in await stream.receive_some()


async def answer_to(endpoint: SocketEndpoint, data: bytes) -> Answer:
    """Return the only answer to ``data``, behind which the connection ends."""
    connection = await endpoint.connect()
    connection.expect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_what_is_taken, connection.stream, data)
        with trio.fail_after(PATIENCE):
            answer = await connection.answer()
            assert await connection.stream.receive_some(1) == b""
        nursery.cancel_scope.cancel()
    return answer


async def send_what_is_taken(stream: trio.abc.Stream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError:
        return


INNER = modern_call("wait", name="smuggled")


def framed(*lines: str, body: bytes = INNER) -> bytes:
    """Return a POST whose body is framed by ``lines``; the body holds another request."""
    head = "".join(f"{name}: {value}\r\n" for name, value in BASE.items()) + "".join(f"{line}\r\n" for line in lines)
    return b"POST /mcp HTTP/1.1\r\n" + head.encode("latin-1") + b"\r\n" + body


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLING: dict[str, bytes] = {
    "both lengths": framed("Content-Length: 4", CHUNKED, body=b"0\r\n\r\n" + INNER),
    "both lengths, the other way around": framed(CHUNKED, "Content-Length: 4", body=b"0\r\n\r\n" + INNER),
    "two lengths": framed("Content-Length: 0", f"Content-Length: {len(INNER)}"),
    "two lengths in one": framed(f"Content-Length: 0, {len(INNER)}"),
    "a length with a sign": framed("Content-Length: +0"),
    "a negative length": framed("Content-Length: -1"),
    "a length in hexadecimal": framed("Content-Length: 0x0"),
    "a length with a blank": framed("Content-Length: 0 0"),
    "a length in other digits": framed("Content-Length: \xb2"),
    "an empty length": framed("Content-Length:"),
    "a coding before chunked": framed("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + INNER),
    "a coding behind chunked": framed("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + INNER),
    "chunked twice": framed(CHUNKED, CHUNKED, body=b"0\r\n\r\n" + INNER),
    "an unknown coding": framed("Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + INNER),
    "a blank before the colon": framed("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + INNER),
    "a folded coding": framed("Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n" + INNER),
    "a control character in the coding": framed("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n" + INNER),
    "a bare line feed": framed("X: y\nTransfer-Encoding: chunked", body=b"0\r\n\r\n" + INNER),
    "a bare carriage return": framed("X: y\rTransfer-Encoding: chunked", body=b"0\r\n\r\n" + INNER),
    "a NUL": framed("X: \0", "Content-Length: 0"),
    "a chunk size with a sign": framed(CHUNKED, body=b"+0\r\n\r\n" + INNER),
    "a chunk size with a prefix": framed(CHUNKED, body=b"0x0\r\n\r\n" + INNER),
    "a chunk that is longer than it says": framed(CHUNKED, body=b"1\r\nab\r\n0\r\n\r\n" + INNER),
    "a chunk that ends with a line feed": framed(CHUNKED, body=b"1\r\na\n0\r\n\r\n" + INNER),
    "no host": framed("Content-Length: 0").replace(b"Host: 127.0.0.1\r\n", b""),
    "two hosts": framed("Host: 127.0.0.1", "Content-Length: 0"),
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_server_runs_no_request_that_is_smuggled_in_the_body_of_another_request(
    scene: Scene, endpoint: SocketEndpoint, name: str
) -> None:
    answer = await answer_to(endpoint, SMUGGLING[name])
    assert answer.status in (400, 501)
    await assert_others_are_served(endpoint)
    assert "smuggled" not in scene.journals


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (modern_call("echo", f"X-Long: {'x' * 100 * 1024}\r\n", text="x"), 431),
        (modern_call("echo", "".join(f"X-{n}: {'x' * 100}\r\n" for n in range(1000)), text="x"), 431),
        (modern_call("echo", text="x").replace(b"/mcp", b"/" + b"x" * 100 * 1024, 1), 414),
        (b"x" * 100 * 1024, 414),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (framed("Content-Length: 999999999"), 413),
        (framed("Content-Length: 99999999999999999999"), 400),
    ],
    ids=["a long header", "many headers", "a long target", "noise", "a TLS hello", "a long body", "a vast length"],
)
async def test_oversized_or_malformed_http_request_gets_the_matching_error_status(
    endpoint: SocketEndpoint, data: bytes, status: int
) -> None:
    assert (await answer_to(endpoint, data)).status == status
    await assert_others_are_served(endpoint)


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("Mcp-Method", ["tools/call", "tools/call"]),
        ("Mcp-Method", ["tools/list", "tools/call"]),
        ("Mcp-Name", ["wait", "wait"]),
        ("mcp-name", ["echo", "wait"]),
        ("MCP-Protocol-Version", ["2026-07-28", "2026-07-28"]),
    ],
)
async def test_repeated_mcp_header_gets_error_header_mismatch(
    scene: Scene, endpoint: SocketEndpoint, header: str, values: list[str]
) -> None:
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "mine"}})
    kept = {name: value for name, value in headers.items() if name.lower() != header.lower()}
    data = request_bytes("POST", {**kept}, body)
    lines = "".join(f"{header}: {value}\r\n" for value in values).encode()
    connection = await endpoint.connect()
    await connection.stream.send_all(data.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1))
    connection.expect()
    answer = await connection.answer()
    assert (answer.status, answer.code) == (400, -32020)
    assert "mine" not in scene.journals


FOREIGN: list[dict[str, str | None]] = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "127.0.0.1@evil.example"},
    {"Host": "localhost.evil.example:80"},
    {"Host": "127.0.0.1:x"},
    {"Host": "[::1"},
    {"Host": ""},
    {"Origin": "https://evil.example"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://127.0.0.1@evil.example"},
    {"Origin": "HTTP://EVIL.EXAMPLE"},
    {"Origin": "null"},
    {"Origin": "file://"},
    {"Origin": ""},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=[str(each) for each in FOREIGN])
async def test_htt_06_disallowed_host_or_origin_gets_status_403_in_every_spelling(
    scene: Scene, endpoint: SocketEndpoint, headers: dict[str, str | None]
) -> None:
    good, body = modern("tools/call", {"name": "wait", "arguments": {"name": "mine"}})
    answer = await endpoint.ask("POST", {**good, **headers}, body)
    assert answer.status == (400 if headers.get("Host") == "" else 403)
    assert "access-control-allow-origin" not in answer.headers
    assert "mine" not in scene.journals


@pytest.mark.parametrize(
    "headers", [{"Host": "localhost:99"}, {"Host": "[::1]:99"}, {"Host": "LOCALHOST"}, {"Origin": "http://[::1]:3000"}]
)
async def test_htt_06_local_host_names_are_accepted(endpoint: SocketEndpoint, headers: dict[str, str | None]) -> None:
    good, body = modern("tools/list")
    assert (await endpoint.ask("POST", {**good, **headers}, body)).status == 200


@pytest.mark.parametrize("part", ["head", "body"])
async def test_slow_request_body_gets_status_408_while_other_requests_are_served(
    scene: Scene, autojump_clock: MockClock, part: str
) -> None:
    async with in_memory(scene.server, body_timeout=20) as endpoint:
        data = modern_call("wait", name="slow")
        slow = await endpoint.connect()
        await slow.stream.send_all(data[:30] if part == "head" else data[:-20])
        slow.expect()
        answers: list[Answer] = []

        async def read() -> None:
            answers.append(await slow.answer())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not answers:
                await slow.stream.send_all(b"x")
                await trio.sleep(4)
                assert (await endpoint.modern("tools/list")).status == 200
        assert answers[0].status == 408
        assert "slow" not in scene.journals


@pytest.mark.parametrize("how", ["an end", "a reset"])
async def test_htt_03_truncated_body_never_runs_and_leaves_other_requests_unaffected(
    scene: Scene, endpoint: SocketEndpoint, how: str
) -> None:
    session = await endpoint.initialize()
    for data in (modern_call("wait", name="never"), request_bytes("POST", session, call("wait", name="never"))):
        connection = await endpoint.connect()
        assert isinstance(connection.stream, trio.SocketStream)
        await connection.stream.send_all(data[:-1])
        await wait_all_tasks_blocked()
        if how == "a reset":
            connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(connection.stream)
        await assert_others_are_served(endpoint)
    assert "never" not in scene.journals
    assert (await endpoint.ask("POST", session, call("echo", text="on"))).status == 200


@pytest.mark.parametrize("size", [64 * 1024, 500_000, 2_000_000])
async def test_client_that_disconnects_cancels_its_call_even_if_it_sent_part_of_a_further_request(
    scene: Scene, endpoint: SocketEndpoint, size: int
) -> None:
    with trio.fail_after(PATIENCE):
        connection = await endpoint.connect()
        await connection.stream.send_all(modern_call("wait", name="left"))
        await scene["left"].started.wait()
        await send_what_is_taken(connection.stream, framed(f"Content-Length: {size}", body=b"x" * size))
        await connection.aclose()
        await scene["left"].ended.wait()
    cancellation = scene["left"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.DISCONNECT


@pytest.mark.parametrize(
    ("line", "status"),
    [("Host: elsewhere", 403), ("Content-Type: text/plain", 415), ("Accept: text/html", 406)],
)
async def test_client_that_reads_only_after_it_has_sent_its_whole_body_receives_the_rejection(
    endpoint: SocketEndpoint, line: str, status: int
) -> None:
    headers = {**BASE, line.partition(": ")[0]: line.partition(": ")[2]}
    with trio.fail_after(PATIENCE):
        connection = await endpoint.connect()
        await connection.stream.send_all(request_bytes("POST", {**headers}, b"x" * 8 * 1024 * 1024))
        connection.expect()
        assert (await connection.answer()).status == status
        await connection.aclose()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_bpl_03_client_that_does_not_read_blocks_only_its_own_handler(
    scene: Scene, endpoint: SocketEndpoint, era: str
) -> None:
    data = modern_call("flood", name="flood", count=10**9)
    if era == "legacy":
        data = request_bytes("POST", await endpoint.initialize(), call("flood", name="flood", count=10**9))
    deaf = await endpoint.connect()
    assert isinstance(deaf.stream, trio.SocketStream)
    deaf.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await deaf.stream.send_all(data)
    journal = scene["flood"]
    with trio.fail_after(PATIENCE):
        await journal.started.wait()
        before = -1
        while before != journal.runs:  # what the system takes, and no more
            before = journal.runs
            await assert_others_are_served(endpoint)
            await trio.sleep(0.05)
    assert journal.runs < 20_000
    assert not journal.ended.is_set()
    await deaf.aclose()
    await assert_others_are_served(endpoint)
    if era == "legacy":  # it goes on, for a client that may come back, and lets others run
        assert not journal.ended.is_set()
        return
    with trio.fail_after(PATIENCE):
        await journal.ended.wait()
    assert journal.cancellation is not None
    assert journal.cancellation.cause is CancelCause.DISCONNECT


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Both ends of all the connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * HALF_OPEN + 500
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"this takes {needed} descriptors, and {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_two_thousand_half_open_connections_do_not_block_other_clients(
    scene: Scene, many_descriptors: None
) -> None:
    request = modern_call("wait", name="never")
    parts = [b"", request[:1], request[:100], request[: request.index(b"\r\n\r\n") + 2]]
    async with over_sockets(scene.server) as endpoint:
        listening = await endpoint.connect()
        await listening.stream.send_all(modern_call("wait", name="before"))
        await scene["before"].started.wait()
        with ExitStack() as opened:
            for number in range(HALF_OPEN):
                half = opened.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
                half.sendall(parts[number % len(parts)])
                if number % 50 == 0:  # the queue of the listener is as long as the system allows
                    await assert_others_are_served(endpoint)
            await assert_others_are_served(endpoint)
            scene["before"].may_go_on.set()
            listening.expect()
            assert text_of((await listening.answer()).json) == "before is done"
    assert "never" not in scene.journals


async def test_mod_03_response_stream_contains_only_messages_of_its_request(
    scene: Scene, endpoint: SocketEndpoint
) -> None:
    session = await endpoint.initialize()
    listening = await endpoint.connect()
    headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "the same")
    await listening.send("POST", {**headers}, body)
    await listening.head()
    assert (await next_message(listening))["method"] == "notifications/subscriptions/acknowledged"
    legacy = await endpoint.connect()
    await legacy.send("POST", session, call("steps", "the same", name="legacy"))
    headers, body = modern("tools/call", {"name": "steps", "arguments": {"name": "modern"}}, "the same")
    other = await endpoint.connect()
    await other.send("POST", {**headers}, body)
    for name in ("legacy", "modern"):
        await scene[name].started.wait()
    scene.server.remove_tool("echo")
    for name in ("legacy", "modern"):
        scene[name].may_go_on.set()
    for connection in (legacy, other):
        told = [each.get("method", "result") for each in messages_in(await connection.answer())]
        assert told == ["notifications/message", "notifications/message", "result"]
    changed = await next_message(listening)
    assert changed["method"] == "notifications/tools/list_changed"
    assert changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "the same"
    await listening.aclose()


@pytest.mark.parametrize("framing", ["length", "chunked", "huge length"])
@pytest.mark.parametrize("status", [413, 403])
async def test_client_that_reads_only_after_sending_a_12_mb_body_receives_the_rejection(
    framing: str, status: int
) -> None:
    size = 12 * 1024 * 1024
    host = "127.0.0.1" if status == 413 else "evil.example"
    length = {
        "length": f"Content-Length: {size}",
        "huge length": f"Content-Length: {10**12}",
        "chunked": "Transfer-Encoding: chunked",
    }[framing]
    head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode()
    if framing == "chunked":
        head += b"%x\r\n" % size
    async with served(Server("s", limits=Limits(max_message_bytes=1024 * 1024))) as endpoint:
        with trio.fail_after(PATIENCE):
            async with await trio.open_tcp_stream("127.0.0.1", endpoint.port) as stream:
                await stream.send_all(head)
                for _ in range(size // 65536):
                    await stream.send_all(bytes(65536))
                assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 %d " % status)


async def test_server_reads_the_body_of_a_rejected_request_only_up_to_a_limit() -> None:
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {10**12}\r\n\r\n".encode()
    async with served(Server("s", limits=Limits(max_message_bytes=64 * 1024))) as endpoint:
        with trio.fail_after(PATIENCE):
            async with await trio.open_tcp_stream("127.0.0.1", endpoint.port) as stream:
                await stream.send_all(head)
                with pytest.raises(trio.BrokenResourceError):
                    for _ in range(10_000):
                        await stream.send_all(bytes(65536))
