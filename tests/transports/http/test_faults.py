"""What is wrong with a request is answered, in words that the client can read, and the connection ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
import trio
from tests.transports.http.clients import TEXT, App, later, response_in, serving, socket_pair
from tests.transports.http.test_requests import HOSTILE, head

from trio_mcp.transports.http.application import Admitted, Answer, HeadDecision, HttpBounds, RequestHead

LONG = head(b"Content-Length: 100000000")
CHUNKED = head(b"Transfer-Encoding: chunked")


def turned_away(_: RequestHead) -> Answer:
    return Answer(401, TEXT, b"who are you?")


@pytest.mark.parametrize("name", HOSTILE)
async def test_connection_closes_after_a_request_with_malicious_headers_is_refused(name: str) -> None:
    status, data = HOSTILE[name]
    async with serving(App(), pair=await socket_pair()) as client:
        await client.send(data + b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n")
        found, headers, body = await client.only_answer()
        assert (found, headers[b"connection"]) == (status, b"close")
        assert body == client.app.refused[0][1].encode()
        assert not client.app.requests


async def test_request_with_a_content_length_beyond_the_body_limit_gets_status_413() -> None:
    async with serving(App()) as client:
        await client.send(LONG)
        assert (await client.only_answer())[0] == 413


async def test_chunked_body_beyond_the_limit_gets_status_413() -> None:
    async with serving(App(), HttpBounds(max_body_bytes=10)) as client:
        await client.send(CHUNKED + b"a\r\n0123456789\r\n")
        await client.settle()
        await client.send(b"1\r\nx")
        assert (await client.only_answer())[0] == 413


@pytest.mark.parametrize("framing", [LONG, CHUNKED])
async def test_client_that_sends_the_whole_body_before_it_reads_can_read_the_refusal(framing: bytes) -> None:
    async with serving(App(admitting=turned_away), pair=await socket_pair()) as client:
        await client.send(framing)
        for _ in range(8):
            await client.send(b"x" * 65536)
            await client.settle()
        assert (await client.only_answer())[::2] == (401, b"who are you?")


async def test_client_that_keeps_sending_after_a_refusal_is_disconnected() -> None:
    async with serving(App(), HttpBounds(max_linger_bytes=100_000), pair=await socket_pair()) as client:
        await client.send(LONG)
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.send(b"x" * 65536)
        await client.ended.wait()


ALLOWED = head(b"Content-Length: 4000000")


@pytest.mark.parametrize("framing", [ALLOWED, CHUNKED + b"3d0900\r\n"])
async def test_body_of_a_request_refused_by_its_headers_is_read_and_discarded(framing: bytes) -> None:
    async with serving(App(admitting=turned_away), HttpBounds(max_linger_bytes=1000), await socket_pair()) as client:
        await client.send(framing, b"x" * 4_000_000)
        assert (await client.only_answer())[::2] == (401, b"who are you?")
        assert not client.app.requests


async def test_body_of_a_request_refused_over_tls_is_read_and_discarded(tls_pair: Callable[[], Awaitable[Any]]) -> None:
    async with serving(App(admitting=turned_away), HttpBounds(max_linger_bytes=1000), await tls_pair()) as client:
        await client.send(ALLOWED, b"x" * 4_000_000)
        assert (await client.only_answer())[::2] == (401, b"who are you?")


async def test_server_discards_the_body_of_a_refused_request_for_at_most_the_body_timeout() -> None:
    async with serving(App(admitting=turned_away), pair=await socket_pair()) as client:
        await client.send(ALLOWED)
        await client.settle()
        client.tick(0, 59)
        await client.send(b"x" * 1_000_000)
        await client.settle()
        client.tick(59.9)
        assert not client.ended.is_set()
        client.tick(60)
        await client.settle()
        assert client.ended.is_set()


async def test_connection_closes_two_seconds_after_the_body_of_a_refused_request_was_discarded() -> None:
    async with serving(App(admitting=turned_away), pair=await socket_pair()) as client:
        await client.send(ALLOWED + b"x" * 4_000_000)
        await client.settle()
        client.tick(0, 1.9)
        assert not client.ended.is_set()
        client.tick(2)
        await client.settle()
        assert client.ended.is_set()


async def test_http_connection_counts_as_idle_while_it_discards_the_body_of_a_refused_request() -> None:
    async with serving(App(admitting=turned_away), pair=await socket_pair()) as client:
        await client.send(ALLOWED)
        await client.settle()
        assert client.connection.is_idle
        client.connection.shut_down()
        await client.settle()
        assert not client.ended.is_set()
        client.connection.shut_down(now=True)
        await client.ended.wait()


async def test_request_refused_by_its_headers_is_answered_before_the_body_arrives() -> None:
    async with serving(App(admitting=turned_away)) as client:
        await client.send(head(b"Content-Length: 5"))
        assert (await client.only_answer())[0] == 401
        assert not client.app.requests


async def test_connection_stays_open_after_a_refused_request_whose_body_was_received() -> None:
    async with serving(App(admitting=turned_away)) as client:
        await client.send(head(b"Content-Length: 5") + b"hello")
        await client.until(b"who are you?")
        client.app.admit = lambda _: Admitted()
        await client.send(head(b"Content-Length: 3") + b"and")
        assert response_in(await client.until(b"and"))[0] == 200


async def test_each_of_several_pipelined_refused_requests_is_answered() -> None:
    async with serving(App(admitting=turned_away)) as client:
        await client.send((head(b"Content-Length: 5") + b"hello") * 50 + head(b"Connection: close"))
        assert (await client.rest()).count(b"HTTP/1.1 401") == 51


# Expectations


async def test_server_sends_100_continue_after_it_accepts_the_headers() -> None:
    async with serving(App()) as client:
        await client.send(head(b"Content-Length: 5", b"Expect: 100-Continue"))
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200")


async def test_server_sends_100_continue_once_for_a_chunked_body() -> None:
    async with serving(App()) as client:
        await client.send(head(b"Transfer-Encoding: chunked", b"Expect: 100-continue"))
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"5\r\nhe")
        await client.settle()
        await client.send(b"llo\r\n0\r\n\r\n")
        assert (await client.until(b"hello")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("request_", "admitting", "status"),
    [
        (head(b"Content-Length: 5", b"Expect: 100-continue"), turned_away, 401),
        (head(b"Content-Length: 100000000", b"Expect: 100-continue"), lambda _: Admitted(), 413),
        (head(b"Content-Length: 5", b"Expect: payment") + b"hello", lambda _: Admitted(), 417),
    ],
)
async def test_server_sends_no_100_continue_for_a_refused_body(
    request_: bytes, admitting: Callable[[RequestHead], HeadDecision], status: int
) -> None:
    async with serving(App(admitting=admitting)) as client:
        await client.send(request_)
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert b"Connection: close" in answer


@pytest.mark.parametrize(
    "request_",
    [
        head(b"Content-Length: 5", b"Expect: 100-continue") + b"hello",
        head(b"Expect: 100-continue"),
        head(b"Content-Length: 0", b"Expect: 100-continue"),
        head(b"Content-Length: 5", b"Expect: 100-continue", line=b"POST / HTTP/1.0\r\n") + b"hello",
        head(b"Expect: payment", line=b"POST / HTTP/1.0\r\n"),
    ],
)
async def test_server_sends_no_100_continue_for_a_body_that_was_already_received(request_: bytes) -> None:
    async with serving(App()) as client:
        await client.send(request_.replace(b"Host", b"Connection: close\r\nHost"))
        assert (await client.rest()).startswith(b"HTTP/1.1 200")


# Faults of the application


class Fault(Exception):
    """A defect of the application."""


def broken(_: object) -> None:
    raise Fault


async def test_exception_of_the_application_is_raised_unchanged() -> None:
    async with serving(App(broken)) as client:
        await client.send(head())
        await client.ended.wait()
        assert isinstance(client.failure, Fault)


async def test_exception_in_a_response_stream_truncates_the_stream_and_is_raised() -> None:
    class Broken:
        async def next_chunk(self) -> bytes:
            raise Fault

    async with serving(App(lambda exchange: exchange.response.stream(200, TEXT, Broken()))) as client:
        await client.send(head())
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await client.ended.wait()
        assert isinstance(client.failure, Fault)
        assert client.app.requests[0].gone == 1


async def test_response_to_a_request_with_invalid_headers_does_not_contain_the_header_values() -> None:
    app = App(later)
    async with serving(app) as client:
        await client.send(head(b"Authorization: Bearer secret\x01"))
        assert b"secret" not in await client.rest()
    assert app.refused[0][0] is HTTPStatus.BAD_REQUEST
