"""What is an answer, how its end is known, and that an answer cut short is an error wherever the cut is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.transports.http_client.scripted import OK, Script, Visitor, answering, scripted
from trio.testing import wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.connection import BadResponse, BodyTooLong, Reply, RequestNotSent, read_head

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;extension=1\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"

WHOLE = {"length": OK, "chunked": CHUNKED, "interim": INTERIM}


def once(*pieces: bytes) -> Script:
    """Answer one request with ``pieces``, each when the one before was read, and close."""

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        for piece in pieces:
            await visitor.send(piece)
            await wait_all_tasks_blocked()

    return script


async def read(client: HttpClient, method: str = "GET") -> bytes:
    async with client.request(method, "/") as reply:
        return await reply.read(1000)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (OK, True),
        (CHUNKED, True),
        (INTERIM, True),
        (UNTIL_CLOSE, False),
        (OLD, False),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), False),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", True),
        # RFC 9112 section 6.3: the chunks count, and the connection must be closed.
        (CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n", 1), False),
        (OK + b"HTTP/1.1 200 OK\r\n\r\n", False),
    ],
)
async def test_client_finds_the_end_of_a_response_body_and_reuses_the_connection_if_possible(
    answer: bytes, kept: bool
) -> None:
    async def script(visitor: Visitor) -> None:
        while await visitor.request():
            await visitor.send(answer)
            if answer == UNTIL_CLOSE:
                return

    async with scripted(script) as server, HttpClient(server.url) as client:
        assert await read(client) == b"hello"
        assert await read(client) == b"hello"
        assert len(server.visitors) == (1 if kept else 2)


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
async def test_http_response_is_parsed_in_the_same_way_wherever_the_received_bytes_are_split(answer: bytes) -> None:
    for cut in range(1, len(answer)):
        async with scripted(once(answer[:cut], answer[cut:])) as server, HttpClient(server.url) as client:
            assert await read(client) == b"hello", cut


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
async def test_response_truncated_at_any_position_raises_connection_lost(answer: bytes) -> None:
    for cut in range(len(answer)):
        async with scripted(once(answer[:cut])) as server, HttpClient(server.url) as client:
            with pytest.raises(ConnectionLost, match="closed the connection before the response was complete") as lost:
                await read(client)
            assert not isinstance(lost.value, RequestNotSent), "the server has it"


@given(
    st.sampled_from([OK, CHUNKED, INTERIM, UNTIL_CLOSE, OLD]),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=4),
)
async def test_malformed_response_bytes_are_parsed_or_raise_connection_lost(
    answer: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for begin, length, text in edits:
        answer = answer[:begin] + text + answer[begin + length :]
    async with scripted(once(answer)) as server, HttpClient(server.url) as client:
        with suppress(ConnectionLost):
            await read(client)


async def test_response_without_a_length_raises_connection_lost_if_its_head_is_truncated() -> None:
    for cut in range(UNTIL_CLOSE.index(b"hello")):
        async with scripted(once(UNTIL_CLOSE[:cut])) as server, HttpClient(server.url) as client:
            with pytest.raises(ConnectionLost):
                await read(client)


async def test_response_without_a_length_raises_connection_lost_if_the_connection_is_reset() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(UNTIL_CLOSE)
        await wait_all_tasks_blocked()
        visitor.reset()

    async with scripted(script) as server, HttpClient(server.url) as client:
        with pytest.raises(ConnectionLost, match="broke"):
            await read(client)


@pytest.mark.parametrize("status", [204, 304])
async def test_response_204_or_304_has_no_body_despite_content_length(status: int) -> None:
    answer = b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        assert await read(client) == b""
        assert await read(client) == b""
        assert len(server.visitors) == 1


async def test_response_to_a_head_request_has_no_body() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        assert await read(client, "HEAD") == b""


async def test_response_header_names_are_lower_case_and_repeated_values_are_joined() -> None:
    answer = (
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: A\r\nX:   \xe9  \r\nwww-authenticate: B\r\nContent-Length: 0\r\n\r\n"
    )
    async with (
        scripted(answering(answer)) as server,
        HttpClient(server.url) as client,
        client.request("GET", "/") as reply,
    ):
        assert reply.status == 401
        assert reply.headers == {"www-authenticate": "A, B", "x": "\xe9", "content-length": "0"}


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"\x15",
        b"<html></html>\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxxx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 20_000,
    ],
)
async def test_invalid_http_response_raises_bad_response_with_the_reason(answer: bytes) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(answer)
        await visitor.gone()

    async with scripted(script) as server, HttpClient(server.url) as client:
        with pytest.raises(BadResponse, match=r"no valid HTTP/1\.1 response: \w") as bad:
            await read(client)
    assert len(str(bad.value)) < 300


async def test_http_client_raises_bad_response_for_response_headers_beyond_the_size_limit() -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n"
    async with scripted(once(answer)) as server, HttpClient(server.url) as client:
        with pytest.raises(BadResponse, match="too long"):
            await read(client)


async def test_http_client_accepts_response_headers_of_several_kib() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX: %s\r\nContent-Length: 5\r\n\r\nhello" % (b"y" * 15_000)
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        assert await read(client) == b"hello"


async def test_server_that_sends_1xx_responses_endlessly_raises_bad_response() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        while True:
            await visitor.send(b"HTTP/1.1 102 Processing\r\n\r\n")

    async with scripted(script) as server, HttpClient(server.url) as client:
        with pytest.raises(BadResponse, match="interim"):
            await read(client)


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"x\x01y"])
async def test_http_client_raises_bad_response_for_a_compressed_response(encoding: bytes) -> None:
    answer = OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: %s\r\n\r\n" % encoding)
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        with pytest.raises(BadResponse, match="encod") as bad:
            await read(client)
    assert "\x01" not in str(bad.value)


async def test_response_with_content_encoding_identity_is_accepted() -> None:
    answer = OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: Identity\r\n\r\n")
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        assert await read(client) == b"hello"


@pytest.mark.parametrize("answer", [OK, CHUNKED])
async def test_response_body_longer_than_the_read_limit_raises_body_too_long(answer: bytes) -> None:
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        async with client.request("GET", "/") as reply:
            assert await reply.read(5) == b"hello"
        with pytest.raises(BodyTooLong, match="longer than 4 bytes"):
            async with client.request("GET", "/") as reply:
                await reply.read(4)


async def test_http_client_receives_each_part_of_a_response_body_as_soon_as_the_part_arrives() -> None:
    release = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n1\n\r\n")
        await visitor.send(b"2\r\n2\n\r\n")
        await release.wait()
        await visitor.send(b"2\r\n3\n\r\n0\r\n\r\n")

    async with scripted(script) as server, HttpClient(server.url) as client, client.request("GET", "/") as reply:
        data = b""
        while data != b"1\n2\n":
            data += await reply.receive_some()
        release.set()
        assert await reply.read(10) == b"3\n"
        assert await reply.receive_some() == b""


async def test_http_response_that_is_read_after_the_end_of_its_with_block_raises_connection_lost() -> None:
    kept: list[Reply] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"
    async with scripted(answering(answer)) as server, HttpClient(server.url) as client:
        async with client.request("GET", "/") as reply:
            kept.append(reply)
            assert await reply.receive_some() == b"hel"
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await kept[0].receive_some()


class _Brought:
    """A connection that has brought all of an answer at once."""

    name = "here"

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self, _: int) -> bytes:
        data, self._data = self._data, b""
        return data


async def test_client_yields_to_other_tasks_while_it_parses_many_small_chunks() -> None:
    connection: Any = _Brought(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    reply = Reply(connection, *await read_head(connection, b"GET", 1 << 20))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await reply.receive_some() == b"x" * 2000
        nursery.cancel_scope.cancel()
    assert turns > 5
