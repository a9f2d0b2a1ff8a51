"""Connections end in good order: after their last answer, when their time is over, and whatever the client does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from tests.transports.http.clients import TEXT, App, Exchange, Pieces, later, response_in, serving, socket_pair
from tests.transports.http.test_requests import head
from trio.testing import memory_stream_pair

from trio_mcp.transports.http.application import Answer, HttpBounds
from trio_mcp.transports.http.connection import HttpConnection

POST = head(b"Content-Length: 5") + b"hello"
BIG = b"x" * 8_000_000


# Answers


@pytest.mark.parametrize(("status", "length"), [(200, b"0"), (202, b"0"), (204, None), (304, None), (599, b"0")])
async def test_empty_response_has_content_length_zero_if_its_status_allows_a_body(
    status: int, length: bytes | None
) -> None:
    async with serving(App(lambda exchange: exchange.response.answer(Answer(status), close=True))) as client:
        await client.send(POST)
        found, headers, body = await client.only_answer()
        assert (found, headers.get(b"content-length"), body) == (status, length, b"")


async def test_response_to_a_head_request_has_content_length_but_no_body() -> None:
    async with serving(App()) as client:
        await client.send(head(b"Connection: close", line=b"HEAD /mcp HTTP/1.1\r\n"))
        _, headers, body = response_in(await client.rest(), "HEAD")
        assert (headers[b"content-length"], body) == (b"4", b"")


async def test_streamed_response_to_a_head_request_ends_after_its_headers() -> None:
    app = App(lambda exchange: exchange.response.stream(200, TEXT, Pieces()))
    async with serving(app) as client:
        await client.send(head(line=b"HEAD /mcp HTTP/1.1\r\n"))
        assert (await client.until(b"\r\n\r\n")).count(b"\r\n\r\n") == 1
        assert app.requests[0].gone == 1
        app.serving = lambda exchange: exchange.response.answer(Answer(200), close=True)
        await client.send(POST)
        assert (await client.only_answer())[0] == 200


async def test_http_1_0_response_closes_the_connection() -> None:
    async with serving(App()) as client:
        await client.send(head(b"Connection: keep-alive", line=b"GET /mcp HTTP/1.0\r\n"))
        status, headers, body = await client.only_answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"/mcp")


async def test_http_1_0_stream_ends_by_closing_the_connection() -> None:
    pieces = Pieces()
    pieces.put(b"one", b"two", b"")
    async with serving(App(lambda exchange: exchange.response.stream(200, TEXT, pieces))) as client:
        await client.send(head(line=b"GET /mcp HTTP/1.0\r\n"))
        _, headers, body = await client.only_answer()
        assert body == b"onetwo"
        assert b"transfer-encoding" not in headers


async def test_second_response_to_a_request_is_ignored() -> None:
    def twice(exchange: Exchange) -> None:
        exchange.response.answer(Answer(200, TEXT, b"first"))
        exchange.response.answer(Answer(200, TEXT, b"second"))
        exchange.response.stream(200, TEXT, Pieces())

    async with serving(App(twice)) as client:
        await client.send(POST)
        assert (await client.until(b"first")).count(b"HTTP/1.1") == 1
        assert client.app.requests[0].response.is_gone
        await client.send(POST)
        await client.until(b"first")


async def test_response_larger_than_the_socket_buffer_is_written_completely() -> None:
    app = App(lambda exchange: exchange.response.answer(Answer(200, TEXT, BIG)))
    async with serving(app, pair=await socket_pair()) as client:
        await client.send(POST + POST)
        await client.settle()
        assert len(client.app.requests) == 1, "the next request waits until the answer is written"
        for _ in range(2):
            got = 0
            while got < len(BIG):
                got += (await client.stream.receive_some(1 << 20)).count(b"x")
            await client.settle()
        assert len(client.app.requests) == 2


# The client goes


@pytest.mark.parametrize("kind", ["answer", "stream"])
async def test_application_is_notified_if_its_client_disconnects_during_a_response(kind: str) -> None:
    def respond(exchange: Exchange) -> None:
        if kind == "answer":
            exchange.response.answer(Answer(200, TEXT, BIG))
        else:
            exchange.response.stream(200, TEXT, Pieces())

    async with serving(App(respond), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        await client.stream.aclose()
        await client.ended.wait()
        assert client.app.requests[0].gone == 1
        assert client.results == [None]


async def test_client_that_closes_its_sending_side_cancels_its_unanswered_request() -> None:
    async with serving(App(later), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        await client.stream.send_eof()
        await client.ended.wait()
        assert client.app.requests[0].gone == 1


async def test_client_that_closes_its_sending_side_still_receives_a_response_that_is_ready() -> None:
    app = App(lambda exchange: exchange.response.answer(Answer(200, TEXT, BIG)))
    async with serving(app, pair=await socket_pair()) as client:
        await client.send(POST)
        await client.stream.send_eof()
        assert (await client.rest()).endswith(BIG)
        assert client.app.requests[0].gone == 0


async def test_arrival_of_the_next_request_does_not_cancel_the_running_request() -> None:
    async with serving(App(later), pair=await socket_pair()) as client:
        await client.send(POST + POST[:20])
        await client.settle()
        assert client.app.requests[0].gone == 0
        await client.stream.aclose()
        await client.ended.wait()
        assert [exchange.gone for exchange in client.app.requests] == [1]


@pytest.mark.parametrize("size", [1000, 64 * 1024, 300_000, 1_000_000])
async def test_server_detects_a_disconnect_even_if_received_bytes_are_unread(size: int) -> None:
    async with serving(App(later), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        await client.send(head(b"Content-Length: %d" % size) + b"x" * (size - 200))
        await client.settle()
        assert client.app.requests[0].gone == 0
        await client.stream.aclose()
        await client.ended.wait()
        assert [exchange.gone for exchange in client.app.requests] == [1]


async def test_pipelined_requests_are_served_after_the_running_request() -> None:
    async with serving(App(later), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        await client.send((head(b"Content-Length: 20000") + b"x" * 20_000) * 50)
        await client.settle()
        client.app.serving = lambda exchange: exchange.response.answer(Answer(204))
        client.app.requests[0].response.answer(Answer(204))
        got = 0
        while got < 51:
            got += (await client.stream.receive_some(65536)).count(b"HTTP/1.1 204")


async def test_client_that_pipelines_too_many_bytes_is_treated_as_disconnected() -> None:
    async with serving(App(later), HttpBounds(max_pipelined_bytes=100_000), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        await client.send(b"x" * 100_000)
        await client.settle()
        assert client.app.requests[0].gone == 0
        await client.send(b"x")
        await client.ended.wait()
        assert client.app.requests[0].gone == 1


async def test_http_connection_whose_task_is_cancelled_reports_a_disconnect_to_the_application_and_closes() -> None:
    ours, theirs = memory_stream_pair()
    app = App(later)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(ours, app, HttpBounds()).serve)
        await theirs.send_all(POST)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert app.requests[0].gone == 1
    assert await theirs.receive_some() == b""


# Ends on request


@pytest.mark.parametrize("begun", [b"", POST[:10]])
async def test_shutdown_immediately_closes_a_connection_with_incomplete_headers(begun: bytes) -> None:
    async with serving(App()) as client:
        await client.send(begun)
        await client.settle()
        assert client.connection.is_idle
        client.connection.shut_down()
        assert await client.rest() == b""


async def test_connection_that_is_shut_down_before_a_request_closes_without_a_response() -> None:
    ours, theirs = memory_stream_pair()
    connection = HttpConnection(ours, App(), HttpBounds())
    connection.shut_down()
    await connection.serve()
    assert await theirs.receive_some() == b""


async def test_connection_that_is_shut_down_during_a_request_closes_after_the_response() -> None:
    async with serving(App(later)) as client:
        await client.send(POST)
        await client.settle()
        assert not client.connection.is_idle
        client.connection.shut_down()
        client.app.requests[0].response.answer(Answer(200, TEXT, b"last"))
        _, headers, body = await client.only_answer()
        assert (headers[b"connection"], body) == (b"close", b"last")


async def test_connection_that_is_shut_down_during_a_request_body_closes_after_the_response() -> None:
    async with serving(App()) as client:
        await client.send(POST[:-3])
        await client.settle()
        client.connection.shut_down()
        await client.send(POST[-3:])
        assert (await client.only_answer())[2] == b"hello"


# Time


async def test_request_headers_not_complete_within_the_timeout_get_status_408() -> None:
    async with serving(App()) as client:
        await client.send(POST[:10])
        await client.settle()
        client.tick(0, 9)
        await client.send(POST[10:20])
        await client.settle()
        client.tick(9.9)
        assert not client.app.refused
        client.tick(10)
        assert (await client.only_answer())[0] == 408


async def test_request_body_not_complete_within_the_timeout_gets_status_408() -> None:
    async with serving(App()) as client:
        await client.send(POST[:-1])
        await client.settle()
        client.tick(5, 64.9)
        assert not client.app.refused
        client.tick(65)
        assert (await client.only_answer())[0] == 408


async def test_idle_connection_is_closed_after_the_idle_timeout_without_a_response() -> None:
    async with serving(App()) as client:
        await client.settle()
        client.tick(0, 9)
        await client.send(POST)
        await client.until(b"hello")
        client.tick(11, 85)
        assert client.connection.is_idle
        client.tick(86)
        assert await client.rest() == b""


async def test_connection_without_any_request_is_closed_after_the_handshake_timeout() -> None:
    async with serving(App()) as client:
        await client.settle()
        client.tick(0, 9)
        assert client.connection.is_idle
        client.tick(10)
        assert await client.rest() == b""


async def test_client_that_sends_only_empty_lines_does_not_extend_the_idle_timeout() -> None:
    async with serving(App()) as client:
        client.tick(0)
        await client.send(b"\r\n" * 8)
        await client.settle()
        client.tick(75)
        assert await client.rest() == b""


async def test_http_connection_sets_no_time_limit_for_a_running_request() -> None:
    async with serving(App(later)) as client:
        await client.send(POST)
        await client.settle()
        client.tick(0, 1_000_000)
        client.app.requests[0].response.answer(Answer(200, TEXT, b"at last"))
        await client.until(b"at last")


@pytest.mark.parametrize("kind", ["answer", "stream"])
async def test_client_that_does_not_read_the_response_is_disconnected_after_the_write_timeout(kind: str) -> None:
    def respond(exchange: Exchange) -> None:
        if kind == "answer":
            exchange.response.answer(Answer(200, TEXT, BIG))
        else:
            pieces = Pieces()
            pieces.put(BIG)
            exchange.response.stream(200, TEXT, pieces)

    async with serving(App(respond), pair=await socket_pair()) as client:
        await client.send(POST)
        await client.settle()
        client.tick(0, 29)
        await client.stream.receive_some(4_000_000)
        await client.settle()
        client.tick(30, 59)
        assert client.app.requests[0].gone == 0
        client.tick(60)
        await client.ended.wait()
        assert client.app.requests[0].gone == 1


async def test_http_response_stream_stays_open_while_no_data_is_sent() -> None:
    pieces = Pieces()
    async with serving(App(lambda exchange: exchange.response.stream(200, TEXT, pieces))) as client:
        await client.send(POST)
        await client.until(b"\r\n\r\n")
        client.tick(0, 1_000_000)
        pieces.put(b"a")
        await client.until(b"1\r\na\r\n")


async def test_client_that_does_not_close_after_the_last_response_is_disconnected() -> None:
    async with serving(App(), pair=await socket_pair()) as client:
        await client.send(head(b"Connection: close"))
        assert (await client.only_answer())[0] == 200
        assert not client.ended.is_set()
        client.tick(0, 2)
        await client.ended.wait()


# TLS


async def test_server_receives_requests_and_sends_streamed_responses_over_tls(
    tls_pair: Callable[[], Awaitable[Any]],
) -> None:
    pieces = Pieces()
    async with serving(App(), pair=await tls_pair()) as client:
        for _ in range(3):
            await client.send(POST)
            await client.until(b"hello")
        client.app.serving = lambda exchange: exchange.response.stream(200, TEXT, pieces)
        await client.send(POST)
        await client.until(b"\r\n\r\n")
        pieces.put(b"a")
        await client.until(b"1\r\na\r\n")
        await client.stream.aclose()
        await client.ended.wait()
        assert client.app.requests[-1].gone == 1


async def test_last_response_over_tls_is_followed_by_close_notify(tls_pair: Callable[[], Awaitable[Any]]) -> None:
    async with serving(App(), pair=await tls_pair()) as client:
        await client.send(head(line=b"GET /mcp HTTP/1.0\r\n"))
        assert (await client.only_answer())[2] == b"/mcp"
        await client.ended.wait()


async def test_client_can_read_a_refusal_over_tls_while_it_still_sends_the_body(
    tls_pair: Callable[[], Awaitable[Any]],
) -> None:
    async with serving(App(), pair=await tls_pair()) as client:
        await client.send(head(b"Content-Length: 100000000") + b"x" * 100_000)
        assert b"HTTP/1.1 413" in await client.until(b"bytes")
        await client.settle()
        client.tick(0, 2)
        await client.ended.wait()
