"""Connections are kept while idle, for a while; one that has died meanwhile is noticed before it is used."""

from __future__ import annotations

import gc
import os
import ssl
from contextlib import suppress

import pytest
import trio
import trustme
from tests.transports.http_client.scripted import OK, Script, Scripted, Visitor, answering, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.transports.http_client.client import HttpClient, HttpClientBounds
from trio_mcp.transports.http_client.connection import ClientSocket, HttpClientConnection, RequestNotSent


async def call(client: HttpClient, body: bytes = b"{}") -> bytes:
    async with client.request("POST", "/", body=body) as reply:
        return await reply.read(1000)


def once(answer: bytes, *, left: trio.Event) -> Script:
    """Answer one request of each connection, and close when ``left`` is set."""

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(answer)
        await left.wait()

    return script


async def all_gone(server: Scripted) -> None:
    while server.open:
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("late", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
async def test_client_does_not_reuse_a_connection_that_the_server_closed_while_idle(late: bytes) -> None:
    left = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(OK)
        await left.wait()
        await visitor.send(late)

    async with scripted(script) as server, HttpClient(server.url) as client:
        assert await call(client) == b"hello"
        left.set()
        await all_gone(server)
        assert await call(client) == b"hello"
        assert len(server.visitors) == 2


async def test_request_is_resent_if_none_of_its_bytes_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    left = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(OK)
        await left.wait()
        visitor.reset()

    async with scripted(script) as server, HttpClient(server.url) as client:
        before = len(os.listdir("/proc/self/fd"))
        async with client.request("POST", "/"), client.request("POST", "/"):
            pass
        left.set()
        await all_gone(server)
        monkeypatch.setattr(ClientSocket, "is_readable", lambda _: False)
        assert await call(client) == b"hello"
        assert len(server.visitors) == 3
        assert len(os.listdir("/proc/self/fd")) <= before + 2, "the dead ones are closed"


async def test_request_is_not_resent_if_some_of_its_bytes_were_sent() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        if visitor.number == 0:
            await visitor.send(OK)
            await visitor.request()

    async with scripted(script) as server, HttpClient(server.url) as client:
        assert await call(client) == b"hello"
        with pytest.raises(ConnectionLost, match="closed the connection before the response was complete") as lost:
            await call(client)
        assert not isinstance(lost.value, RequestNotSent)
        assert len(server.visitors) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"X: y", 4),
        (b"Keep-Alive: timeout=11", 10),
        (b"Keep-Alive: max=5, Timeout = 3", 2),
        (b"Keep-Alive: timeout=9999", 60),
        (b"Keep-Alive: max=5", 4),
    ],
)
async def test_idle_connection_is_closed_before_the_keep_alive_timeout_of_the_server(
    mock_clock: MockClock, header: bytes, seconds: int
) -> None:
    ended = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(OK.replace(b"\r\n\r\n", b"\r\n%s\r\n\r\n" % header))
        await visitor.gone()
        ended.set()

    async with scripted(script) as server, HttpClient(server.url) as client:
        await call(client)
        mock_clock.jump(seconds - 0.001)
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        mock_clock.jump(0.001)
        await ended.wait()


async def test_connection_is_closed_after_each_response_if_keep_alive_timeout_is_zero() -> None:
    answer = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=0\r\n\r\n")
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        for _ in range(2):
            assert await call(client) == b"hello"
            await all_gone(server)
        assert len(server.visitors) == 2


async def test_http_client_keeps_a_limited_number_of_idle_connections() -> None:
    release = trio.Event()

    async def script(visitor: Visitor) -> None:
        while await visitor.request():
            await release.wait()
            await visitor.send(OK)

    async with scripted(script) as server:
        async with HttpClient(server.url, bounds=HttpClientBounds(max_idle=2)) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(call, client)
                while len(server.visitors) < 5:
                    await wait_all_tasks_blocked()
                release.set()
            while server.open > 2:
                await wait_all_tasks_blocked()
            assert server.open == 2
        await all_gone(server)
        assert server.open == 0, "the client closes what it kept"


async def test_running_requests_raise_connection_lost_when_the_http_client_closes() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.gone()

    async def hang(client: HttpClient) -> None:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await call(client)

    async with scripted(script) as server, trio.open_nursery() as nursery, HttpClient(server.url) as client:
        nursery.start_soon(hang, client)
        while not server.visitors:
            await wait_all_tasks_blocked()


@pytest.mark.parametrize("size", [30_000, 100_000, 8_000_000])
async def test_client_reads_an_early_response_even_if_the_server_stopped_reading_the_request(size: int) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.stream.receive_some(1000)
        await visitor.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge")
        await finished.wait()

    finished = trio.Event()
    async with scripted(script) as server, HttpClient(server.url) as client:
        async with client.request("POST", "/", body=b"x" * size) as reply:
            assert reply.status == 413
            assert await reply.read(10) == b"large"
        finished.set()


async def test_connection_with_an_unfinished_request_is_not_reused() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.stream.receive_some(1000)
        await visitor.send(OK)
        await visitor.gone()

    async with scripted(script) as server, HttpClient(server.url) as client:
        for _ in range(2):
            assert await call(client, b"x" * 8_000_000) == b"hello"
        assert len(server.visitors) == 2


async def test_http_client_sends_a_large_request_body_completely() -> None:
    body = os.urandom(3_000_000)
    bodies: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            bodies.append(request.partition(b"\r\n\r\n")[2])
            await visitor.send(OK)

    async with scripted(script) as server, HttpClient(server.url) as client:
        for _ in range(2):
            assert await call(client, body) == b"hello"
        assert len(server.visitors) == 1
    assert bodies == [body, body]


def certified(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("size", [2, 3_000_000])
async def test_http_client_reuses_tls_connections(authority: trustme.CA, size: int) -> None:
    async with (
        scripted(answering(OK), ssl_context=certified(authority)) as server,
        HttpClient(server.url, ssl_context=trusting(authority)) as client,
    ):
        for _ in range(3):
            assert await call(client, b"x" * size) == b"hello"
        assert len(server.visitors) == 1


async def test_client_connects_to_the_listening_address_of_a_host_name_with_several_addresses() -> None:
    async with scripted(answering(OK)) as server, HttpClient(f"http://localhost:{server.port}") as client:
        assert await call(client) == b"hello"


async def test_tls_connection_of_a_response_closed_before_its_end_closes_without_waiting(authority: trustme.CA) -> None:
    gone = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await visitor.gone()
        gone.set()
        await trio.sleep_forever()

    async with (
        scripted(script, ssl_context=certified(authority)) as server,
        HttpClient(server.url, ssl_context=trusting(authority)) as client,
    ):
        with trio.CancelScope() as scope:
            async with client.request("GET", "/") as reply:
                assert await reply.receive_some() == b"hello"
                scope.cancel()
                await reply.receive_some()
        await gone.wait()


@pytest.mark.parametrize("farewell", [True, False])
async def test_body_without_length_over_tls_is_complete_only_after_close_notify(
    authority: trustme.CA, farewell: bool
) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        assert isinstance(visitor.stream, trio.SSLStream)
        if farewell:
            with trio.move_on_after(1):
                await visitor.stream.aclose()

    async with (
        scripted(script, ssl_context=certified(authority)) as server,
        HttpClient(server.url, ssl_context=trusting(authority)) as client,
    ):
        if farewell:
            assert await call(client) == b"hello"
        else:
            with pytest.raises(ConnectionLost, match="broke"):
                await call(client)


async def test_1000_requests_of_which_300_are_abandoned_leave_no_descriptors_or_tasks() -> None:
    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            if b"/left" in request[:12]:
                await visitor.gone()
                return
            await visitor.send(OK)

    async def leave(client: HttpClient) -> None:
        with trio.move_on_after(0.001):
            async with client.request("POST", "/left"):
                raise AssertionError("nobody answers")

    async def round_of(client: HttpClient, calls: int) -> None:
        for number in range(calls):
            await (leave(client) if number % 10 < 3 else call(client))

    async def rounds_of(client: HttpClient, calls: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(round_of, client, calls)

    async with scripted(script) as server, HttpClient(server.url) as client:
        await rounds_of(client, 10)
        descriptors, tasks, objects = await left_behind(server)
        await rounds_of(client, 200)
        left = await left_behind(server)
    assert left[0] <= descriptors + 2 * 5, "up to five connections are kept, each with two ends"
    assert left[1] <= tasks + 5
    assert left[2] < objects + 3 * 1000, "trio keeps up to 1,000 deadlines that were not reached, of three objects each"


async def test_failed_http_requests_leave_no_reference_cycles() -> None:
    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            match request.split(b" ")[1]:
                case b"/cut":
                    await visitor.send(OK[:-1])
                    return
                case b"/reset":
                    visitor.reset()
                    return
                case b"/odd":
                    await visitor.send(b"odd\r\n\r\n")
                case b"/late":
                    await visitor.gone()
                    return
                case _:
                    await visitor.send(OK)

    async def fail(client: HttpClient, target: str) -> None:
        with trio.move_on_after(0.01), suppress(ConnectionLost):
            async with client.request("GET", target) as reply:
                await reply.read(100)

    async with scripted(script) as server, HttpClient(server.url) as client:
        gc.collect()
        gc.disable()
        try:
            for target in ("/", "/cut", "/reset", "/odd", "/late"):
                await fail(client, target)
            await wait_all_tasks_blocked()  # trio itself keeps an exception until another task has run
            assert [thing for thing in gc.get_objects() if isinstance(thing, HttpClientConnection)] == []
        finally:
            gc.enable()


async def left_behind(server: Scripted) -> tuple[int, int, int]:
    """Descriptors, tasks and objects, when the server has noticed who is gone."""
    while server.open > 5:
        await wait_all_tasks_blocked()
    server.visitors.clear()
    gc.collect()
    return len(os.listdir("/proc/self/fd")), trio.lowlevel.current_statistics().tasks_living, len(gc.get_objects())


async def test_ipv6_address_in_the_host_header_is_written_in_brackets() -> None:
    hosts: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        request = await visitor.request()
        hosts.append(request.split(b"\r\n")[1])
        await visitor.send(OK)

    try:
        async with scripted(script, host="::1") as server, HttpClient(f"http://[::1]:{server.port}") as client:
            assert await call(client) == b"hello"
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert hosts == [b"Host: [::1]:%d" % server.port]
