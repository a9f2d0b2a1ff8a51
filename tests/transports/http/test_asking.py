"""A request whose caller the application has to ask for waits with its body, and ends with its client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.transports.http.clients import TEXT, App, later, response_in, serving, socket_pair

from trio_mcp.transports.http.application import Admitted, Answer, HeadDecision, HttpBounds, RequestHead

UNKNOWN = Answer(401, TEXT, b"who are you?")


def post(body: bytes = b"hello", *lines: bytes, path: bytes = b"/mcp") -> bytes:
    fields = b"".join(line + b"\r\n" for line in (b"Host: here", b"Content-Length: %d" % len(body), *lines))
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (path, fields, body)


class Desk:
    """Decides on each request when a test says how."""

    def __init__(self) -> None:
        self.asked: list[RequestHead] = []
        self.cancelled = 0
        self._decisions: dict[str, Answer | Admitted | Exception] = {}
        self._decided = trio.Event()

    def admit(self, head: RequestHead) -> Callable[[], Awaitable[Answer | Admitted]]:
        async def ask() -> Answer | Admitted:
            self.asked.append(head)
            try:
                while head.path not in self._decisions:
                    await self._decided.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            decision = self._decisions[head.path]
            if isinstance(decision, Exception):
                raise decision
            return decision

        return ask

    def decide(self, decision: Answer | Admitted | Exception, path: str = "/mcp") -> None:
        self._decisions[path] = decision
        self._decided.set()
        self._decided = trio.Event()


@pytest.fixture
async def desk() -> Desk:
    return Desk()


@pytest.fixture(params=["memory", "socket"])
async def pair(request: pytest.FixtureRequest) -> object:
    return await socket_pair() if request.param == "socket" else None


async def test_http_request_is_served_after_the_server_has_authorized_the_caller(desk: Desk, pair: object) -> None:
    async with serving(App(admitting=desk.admit), pair=pair) as client:
        await client.send(post())
        await client.settle()
        assert not client.app.requests
        desk.decide(Admitted("alice"))
        assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200")
        assert client.app.requests[0].caller == "alice"


async def test_caller_of_an_http_request_can_be_authorized_before_the_body_arrives(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(post()[:-5])
        await client.settle()
        desk.decide(Admitted("alice"))
        await client.settle()
        await client.send(b"hello")
        assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200")


async def test_request_body_that_arrives_in_pieces_during_authorization_is_complete(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        for byte in post():
            await client.send(bytes((byte,)))
            await client.settle()
        desk.decide(Admitted())
        assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200")


async def test_server_sends_no_100_continue_before_the_caller_is_authorized(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit), pair=await socket_pair()) as client:
        await client.send(post(b"hello", b"Expect: 100-continue")[:-5])
        await client.settle()
        with trio.move_on_after(0):
            raise AssertionError(await client.stream.receive_some())
        desk.decide(Admitted())
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        await client.until(b"hello")


async def test_server_sends_no_100_continue_to_a_caller_without_authorization(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(post(b"hello", b"Expect: 100-continue")[:-5])
        desk.decide(UNKNOWN)
        assert (await client.only_answer())[::2] == (401, b"who are you?")
        assert not client.app.requests


async def test_http_connection_stays_open_after_a_refused_request_whose_body_has_arrived(
    desk: Desk, pair: object
) -> None:
    async with serving(App(admitting=desk.admit), pair=pair) as client:
        await client.send(post())
        desk.decide(UNKNOWN)
        await client.until(b"who are you?")
        desk.decide(Admitted())
        await client.send(post(b"again"))
        assert (await client.until(b"again")).startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_are_authorized_and_answered_in_order(desk: Desk, pair: object) -> None:
    paths = ["/a", "/b", "/c"]
    async with serving(App(admitting=desk.admit), pair=pair) as client:
        await client.send(*(post(path.encode(), path=path.encode()) for path in paths))
        for path in reversed(paths):
            await client.settle()
            assert [head.path for head in desk.asked] == ["/a"]
            desk.decide(Admitted() if path != "/b" else UNKNOWN, path)
        got = await client.until(b"/c")
        assert [got.index(word) for word in (b"/a", b"who are you?", b"/c")] == sorted(
            got.index(word) for word in (b"/a", b"who are you?", b"/c")
        )
        assert [head.path for head in desk.asked] == paths


async def test_each_of_many_pipelined_requests_is_authorized(desk: Desk) -> None:
    desk.decide(Admitted())
    async with serving(App(admitting=desk.admit), pair=await socket_pair()) as client:
        await client.send(post() * 100)
        got = b""
        while got.count(b"hello") < 100:
            got += await client.stream.receive_some()
        assert len(desk.asked) == 100


async def test_pipelined_request_waits_for_the_slow_authorization_of_an_earlier_request(
    desk: Desk,
) -> None:
    def admit(head: RequestHead) -> HeadDecision:
        return Admitted("known") if head.path == "/known" else desk.admit(head)

    async with serving(App(admitting=admit)) as client:
        await client.send(post(b"first") + post(b"second", path=b"/known"))
        await client.settle()
        assert not client.app.requests
        desk.decide(Admitted("asked"))
        await client.until(b"second")
        assert [each.caller for each in client.app.requests] == ["asked", "known"]


async def test_client_that_disconnects_during_authorization_cancels_the_authorization(desk: Desk, pair: object) -> None:
    async with serving(App(admitting=desk.admit), pair=pair) as client:
        await client.send(post())
        await client.settle()
        await client.stream.aclose()
        await client.ended.wait()
        assert desk.cancelled == 1
        assert not client.app.requests


async def test_server_stops_reading_if_too_many_bytes_arrive_during_authorization(desk: Desk) -> None:
    bounds = HttpBounds(max_unserved_bytes=1000)
    async with serving(App(admitting=desk.admit), bounds, pair=await socket_pair()) as client:
        body = b"x" * 3_999_999 + b"y"
        async with trio.open_nursery() as nursery:
            sent = trio.Event()

            async def send() -> None:
                await client.send(post(body))
                sent.set()

            nursery.start_soon(send)
            for _ in range(20):
                await client.settle()
            assert not sent.is_set()
            desk.decide(Admitted())
            assert (await client.until(b"y")).startswith(b"HTTP/1.1 200")
            assert client.app.requests[0].body == body


async def test_http_connection_timeouts_are_paused_during_authorization(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        client.tick(0)
        await client.send(post()[:-5])
        await client.settle()
        client.tick(10, 1_000, 100_000)
        await client.settle()
        desk.decide(Admitted())
        await client.settle()
        client.tick(100_001, 100_060.5)
        await client.send(b"hello")
        await client.until(b"hello")


async def test_http_body_timeout_begins_when_the_request_is_authorized(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(post()[:-5])
        await client.settle()
        desk.decide(Admitted())
        await client.settle()
        client.tick(1_000, 1_060)
        assert (await client.only_answer())[0] == 408


async def test_http_request_that_awaits_authorization_is_still_answered_during_shutdown(
    desk: Desk, pair: object
) -> None:
    async with serving(App(admitting=desk.admit), pair=pair) as client:
        await client.send(post())
        await client.settle()
        client.connection.shut_down()
        assert not client.connection.is_idle
        desk.decide(Admitted())
        status, headers, body = await client.only_answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"hello")


async def test_immediate_shutdown_cancels_the_authorization_of_a_request(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(post())
        await client.settle()
        client.connection.shut_down(now=True)
        await client.ended.wait()
        assert desk.cancelled == 1


async def test_exception_during_authorization_of_a_request_is_raised_unchanged(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(post())
        failure = ZeroDivisionError()
        desk.decide(failure)
        await client.ended.wait()
        assert client.failure is failure


async def test_invalid_chunk_received_during_authorization_gets_status_400_afterwards(
    desk: Desk,
) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        desk.decide(Admitted(), "/")
        assert (await client.only_answer())[0] == 400


async def test_server_detects_that_the_client_disconnects_after_authorization(desk: Desk) -> None:
    async with serving(App(later, admitting=desk.admit)) as client:
        await client.send(post())
        desk.decide(Admitted())
        await client.settle()
        await client.stream.aclose()
        await client.ended.wait()
        assert client.app.requests[0].gone == 1


async def test_head_request_without_authorization_gets_a_response_without_a_body(desk: Desk) -> None:
    async with serving(App(admitting=desk.admit)) as client:
        await client.send(b"HEAD /mcp HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        desk.decide(UNKNOWN)
        assert response_in(await client.rest(), "HEAD")[::2] == (401, b"")
