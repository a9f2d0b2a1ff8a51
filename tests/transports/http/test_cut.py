"""Wherever a connection breaks, the client has its answer, or the application is told once that the client is gone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.transports.http.clients import TEXT, App, Exchange, Pieces, later, serving
from tests.transports.http.test_requests import head
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from trio_mcp.transports.http.application import Admitted, Answer, HeadDecision, HttpBounds, RequestHead
from trio_mcp.transports.http.connection import HttpConnection
from trio_mcp.transports.http.responses import answer_bytes, chunk, stream_head

POST = head(b"Content-Length: 5") + b"hello"
CHUNKED = head(b"Transfer-Encoding: chunked", b"Expect: 100-continue") + b"3\r\nhel\r\n2;x\r\nlo\r\n0\r\nX: y\r\n\r\n"
DONE = Answer(200, TEXT, b"done")


class Breaking(trio.abc.Stream):
    """A stream that takes ``room`` bytes, which go nowhere, and then breaks in both directions."""

    def __init__(self, below: trio.StapledStream[MemorySendStream, MemoryReceiveStream], room: int) -> None:
        self._below = below
        self._room = room
        self.taken = 0

    def send_nowait(self, data: bytes) -> int:
        """Take one byte at once: the writing task takes the rest."""
        if not self._room:
            return 0
        self._room -= 1
        self.taken += 1
        return 1

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        front = bytes(data)[: self._room]
        self._room -= len(front)
        self.taken += len(front)
        if len(front) < len(data):
            await self._below.aclose()
            raise trio.BrokenResourceError("cut")

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._below.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._below.aclose()


def streaming(exchange: Exchange) -> None:
    pieces = Pieces()
    pieces.put(b"one", b"two", b"")
    exchange.response.stream(200, TEXT, pieces)


def answering(exchange: Exchange) -> None:
    exchange.response.answer(DONE)


LENGTHS = {
    answering: len(answer_bytes(DONE, close=False, has_body=True)[0]),
    streaming: len(stream_head(200, TEXT, chunked=True, close=False) + chunk(b"one") + chunk(b"two") + b"0\r\n\r\n"),
}


@pytest.mark.parametrize("request_", [POST, CHUNKED])
async def test_application_receives_only_complete_requests_and_is_notified_if_their_client_disconnects(
    request_: bytes,
) -> None:
    for cut in range(len(request_) + 1):
        app = App(later)
        async with serving(app) as client:
            await client.send(request_[:cut])
            await client.settle()
            await client.stream.aclose()
            await client.ended.wait()
        whole = cut == len(request_)
        assert [(exchange.body, exchange.gone) for exchange in app.requests] == ([(b"hello", 1)] if whole else [])
        assert not app.refused


@pytest.mark.parametrize("respond", [answering, streaming])
async def test_application_is_notified_once_of_a_disconnect_before_the_end_of_its_response(respond: Any) -> None:
    for room in range(LENGTHS[respond] + 1):
        ours, theirs = memory_stream_pair()
        app = App(respond)
        stream = Breaking(ours, room)
        connection = HttpConnection(stream, app, HttpBounds())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            await theirs.send_all(POST)
            await trio.testing.wait_all_tasks_blocked()
            whole = room == LENGTHS[respond]
            assert (stream.taken, app.requests[0].gone) == (room, 0 if whole else 1)
            assert app.requests[0].response.is_gone
            await theirs.aclose()
        assert app.requests[0].gone == (0 if whole else 1)


def at_once(_: RequestHead) -> HeadDecision:
    return Admitted()


def slowly(_: RequestHead) -> HeadDecision:
    """Admit a request after the other tasks have had their turns."""

    async def ask() -> Admitted:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return Admitted()

    return ask


@settings(max_examples=examples(60))
@given(
    data=st.sampled_from([POST, CHUNKED, POST + POST, POST + CHUNKED]),
    cuts=st.sets(st.integers(1, 200), max_size=6),
    ends=st.integers(0, 400),
    responds=st.sampled_from([answering, streaming, later]),
    looks=st.sampled_from([at_once, slowly]),
)
async def test_each_request_is_answered_or_reported_as_disconnected_wherever_the_bytes_are_split(
    data: bytes, cuts: set[int], ends: int, responds: Any, looks: Any
) -> None:
    app = App(responds, looks)
    async with serving(app) as client:
        sent = data[:ends]
        edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
        for start, end in pairwise(edges):
            if start < end:
                await client.send(sent[start:end])
                await client.settle()
        await client.stream.aclose()
        await client.ended.wait()
    assert all(exchange.response.is_gone for exchange in app.requests)
    assert [exchange.gone for exchange in app.requests] == [int(responds is later)] * len(app.requests)


async def test_requests_received_only_in_part_do_not_block_other_connections() -> None:
    async with trio.open_nursery() as nursery:
        app = App()
        halves: list[Any] = []
        for number in range(200):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(HttpConnection(ours, app, HttpBounds()).serve)
            await theirs.send_all(POST[: number % len(POST)] or b"P")
            halves.append(theirs)
        async with serving(app) as client:
            await client.send(POST)
            await client.until(b"hello")
        assert len(app.requests) == 1
        for half in halves:
            await half.aclose()
