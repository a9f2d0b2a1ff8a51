"""A head that repeats the last one is read as any other head, and what differs in any way is parsed anew."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import modern
from tests.serving.http.scenes import in_memory
from tests.transports.http.test_requests import HOSTILE, head

from trio_mcp import Server
from trio_mcp.transports.http import requests
from trio_mcp.transports.http.application import BadRequest, HttpBounds, RequestHead
from trio_mcp.transports.http.requests import HeadCache, RequestReader, read_head

BOUNDS = HttpBounds()
REPEATED = head(b"Content-Type: application/json", b"content-length: 10", b"Authorization: Bearer a", b"X: 1", b"X: 2")


def reader_after(*heads: bytes) -> RequestReader:
    reader = RequestReader(BOUNDS)
    for each in heads:
        read_with(reader, each + b"x" * 10)
    return reader


def read_with(reader: RequestReader, data: bytes) -> tuple[RequestHead, bytes | None]:
    reader.feed(data)
    found = reader.head()
    assert found is not None
    return found, reader.body()


def outcome(reader: RequestReader, data: bytes) -> Any:
    try:
        found, body = read_with(reader, data)
    except BadRequest as bad:
        return bad.status, bad.reason
    return attrs.astuple(found), list(found.headers), body, bytes(reader.unread)


def remembering(raw: bytes) -> HeadCache:
    last = HeadCache()
    for _ in range(2):
        last.store(raw, read_head(raw, BOUNDS))
    return last


VARIATIONS = {
    **{name: data for name, (_, data) in HOSTILE.items()},
    "a longer body": REPEATED.replace(b": 10", b": 12"),
    "no body": REPEATED.replace(b": 10", b": 0"),
    "a length with zeros": REPEATED.replace(b": 10", b": 00010"),
    "a length of nine digits": REPEATED.replace(b": 10", b": 999999999"),
    "a length of twenty digits": REPEATED.replace(b": 10", b": 99999999999999999999"),
    "an empty length": REPEATED.replace(b": 10", b": "),
    "a length with a sign": REPEATED.replace(b": 10", b": +10"),
    "a length with blanks": REPEATED.replace(b": 10", b":  10 "),
    "a length with an underscore": REPEATED.replace(b": 10", b": 1_0"),
    "a length of other digits": REPEATED.replace(b": 10", b": \xb9\xb2"),
    "a list of lengths": REPEATED.replace(b": 10", b": 10, 10"),
    "a second length": REPEATED.replace(b": 10", b": 10\r\nContent-Length: 9"),
    "a second length at the end": REPEATED[:-2] + b"Content-Length: 9\r\n\r\n",
    "a coding beside the length": REPEATED.replace(b": 10", b": 10\r\nTransfer-Encoding: chunked"),
    "a coding instead of the length": REPEATED.replace(b"content-length: 10", b"Transfer-Encoding: chunked"),
    "a second host": REPEATED.replace(b": 10", b": 10\r\nHost: there"),
    "another token": REPEATED.replace(b"Bearer a", b"Bearer b"),
    "no token": REPEATED.replace(b"Authorization: Bearer a\r\n", b""),
    "an origin": REPEATED.replace(b": 10", b": 10\r\nOrigin: http://evil.example"),
    "an expectation": REPEATED.replace(b": 10", b": 10\r\nExpect: 100-continue"),
    "the last of the connection": REPEATED.replace(b": 10", b": 10\r\nConnection: close"),
    "HTTP/1.0": REPEATED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "another method": REPEATED.replace(b"POST", b"PUT"),
    "another target": REPEATED.replace(b"/mcp", b"/mcq"),
    "an absolute target": REPEATED.replace(b"/mcp", b"http://there/mcp"),
    "names in another case": REPEATED.replace(b"content-length", b"Content-Length"),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_request_headers_taken_from_the_cache_equal_the_parsed_headers(name: str) -> None:
    data = VARIATIONS[name] + b"x" * 12
    for similar in (REPEATED, REPEATED.replace(b"/mcp", b"http://here/mcp")):
        expected = outcome(RequestReader(BOUNDS), data)
        assert outcome(reader_after(*[similar] * 3), data) == expected


def test_request_headers_that_differ_in_more_than_content_length_are_parsed_again() -> None:
    last, digits = remembering(REPEATED), REPEATED.index(b"10\r\n")
    for place in range(len(REPEATED)):
        for value in range(256):
            raw = REPEATED[:place] + bytes((value,)) + REPEATED[place + 1 :]
            found = last.lookup(raw)
            if raw == REPEATED or (place in (digits, digits + 1) and chr(value) in "0123456789"):
                assert found is not None
                assert attrs.astuple(found) == attrs.astuple(read_head(raw, BOUNDS))
            else:
                assert found is None
        shorter = REPEATED[:place] + REPEATED[place + 1 :]
        assert (last.lookup(shorter) is None) == (place not in (digits, digits + 1))
        for more in (b"\r\n", b" ", b"\r\nContent-Length: 9"):
            assert last.lookup(REPEATED[:place] + more + REPEATED[place:]) is None


def test_request_headers_that_equal_the_headers_of_the_previous_two_requests_are_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = list[bytes]()

    def noted(raw: bytes, bounds: HttpBounds) -> RequestHead:
        parsed.append(raw)
        return read_head(raw, bounds)

    monkeypatch.setattr(requests, "read_head", noted)
    reader = RequestReader(BOUNDS)
    for length in (10, 10, 5, 999, 0, 10):
        found, body = read_with(reader, REPEATED.replace(b": 10", b": %d" % length) + b"x" * length)
        assert (found.headers["content-length"], body) == (str(length), b"x" * length)
    assert parsed == [REPEATED, REPEATED]  # the first one is not remembered: most streams have no second one


def test_request_headers_longer_than_4096_bytes_are_not_cached() -> None:
    long = REPEATED.replace(b"Bearer a", b"Bearer " + b"a" * 4096)
    assert remembering(long).lookup(long) is None


def test_headers_changed_by_one_request_do_not_affect_the_next_request() -> None:
    reader = reader_after(REPEATED, REPEATED)
    for _ in range(3):
        found, _ = read_with(reader, REPEATED + b"x" * 10)
        assert "seen" not in found.headers
        assert found.accepts is None
        found.headers["seen"] = found.accepts = "yes"


async def test_access_token_in_cached_request_headers_is_verified_for_each_request() -> None:
    tokens, (headers, body) = issued(), modern("tools/list")
    async with in_memory(Server("judging"), auth=protected(tokens, cache_for=1e-9)) as endpoint:
        connection = await endpoint.connect()
        for _ in range(4):
            assert (await connection.ask("POST", {**headers, **bearer("alice-1")}, body)).status == 200
        del tokens.principals["alice-1"]
        assert (await connection.ask("POST", {**headers, **bearer("alice-1")}, body)).status == 401


def test_headers_that_are_changed_after_they_were_returned_do_not_affect_the_header_cache() -> None:
    last, head = HeadCache(), read_head(REPEATED, BOUNDS)
    last.store(REPEATED, head)
    last.store(REPEATED, head)
    for _ in range(2):
        head.headers["authorization"] = "changed"
        head = last.lookup(REPEATED)
        assert head is not None
        assert head.headers["authorization"] == "Bearer a"
