"""No value of a header, no target and no method begins a line of its own, and the client's own headers are its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.connection import request_head


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"X", b"a\r\nEvil: b"),
        (b"X", b"a\nEvil: b"),
        (b"X", b"a\rb"),
        (b"X", b"a\n"),
        (b"X", b"a\0"),
        (b"X", b"\x1b[31m"),
        (b"X", b"\x7f"),
        (b"X", b" a"),
        (b"X", b"a\t"),
        (b"", b"a"),
        (b"X Y", b"a"),
        (b"X:", b"a"),
        (b"X\n", b"a"),
        (b"\xc3\xbc", b"a"),
        (b"Host", b"evil.example"),
        (b"content-LENGTH", b"0"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close"),
        (b"Accept-Encoding", b"gzip"),
        (b"User-Agent", b"x"),
        (b"Proxy-Authorization", b"Basic x"),
    ],
)
def test_header_with_line_breaks_or_invalid_characters_raises_value_error(name: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="header") as refused:
        request_head("POST", "/", [(name, value)], b"")
    assert "evil" not in str(refused.value).lower(), "a value may be a secret"


@pytest.mark.parametrize("value", [b"", b"a", b"a b", b"a\tb", b"\xe9", b"!~"])
def test_http_client_sends_a_valid_header_value_unchanged(value: bytes) -> None:
    assert (
        request_head("GET", "/", [(b"X", value)], b"Host: a\r\n") == b"GET / HTTP/1.1\r\nHost: a\r\nX: %s\r\n" % value
    )


@given(st.binary(), st.binary())
def test_header_that_the_client_accepts_is_sent_as_exactly_one_line(name: bytes, value: bytes) -> None:
    try:
        head = request_head("GET", "/", [(name, value)], b"")
    except ValueError:
        return
    assert head.splitlines() == [b"GET / HTTP/1.1", b"%s: %s" % (name, value)]


@pytest.mark.parametrize("target", ["", "mcp", "http://a/", "/a b", "/a\r\n", "/\u00fc", "*"])
async def test_request_target_that_is_not_a_path_raises_value_error(target: str) -> None:
    async with HttpClient("http://127.0.0.1:1", http_proxy=None) as client:
        with pytest.raises(ValueError, match="target"):
            async with client.request("GET", target):
                pass


@pytest.mark.parametrize("method", ["", "GE T", "GET\r\n", "G\u00cbT"])
async def test_invalid_http_method_raises_value_error(method: str) -> None:
    async with HttpClient("http://127.0.0.1:1", http_proxy=None) as client:
        with pytest.raises(ValueError, match="method"):
            async with client.request(method, "/"):
                pass
