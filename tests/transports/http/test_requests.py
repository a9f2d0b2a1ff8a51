"""Requests are read from bytes however these are cut, and what could be read in two ways is refused."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from trio_mcp.transports.http.application import BadRequest, HttpBounds, RequestHead
from trio_mcp.transports.http.requests import RequestReader

LINE = b"POST /mcp HTTP/1.1\r\n"
HOST = b"Host: here\r\n"


def head(*headers: bytes, line: bytes = LINE, host: bytes = HOST) -> bytes:
    return line + host + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def read(data: bytes, bounds: HttpBounds | None = None, *, cuts: int = 0) -> tuple[RequestHead, bytes, bytes]:
    """Read the one request of ``data``, of which ``cuts`` bytes come first, and return what is behind it, too."""
    reader = RequestReader(bounds or HttpBounds())
    found: RequestHead | None = None
    pieces = [piece for piece in (data[:cuts], data[cuts:]) if piece]
    for number, piece in enumerate(pieces):
        reader.feed(piece)
        if found is None:
            found = reader.head()
        if found is not None and (body := reader.body()) is not None:
            return found, body, bytes(reader.unread) + b"".join(pieces[number + 1 :])
    raise AssertionError("the request is not complete")


def refusal(data: bytes, bounds: HttpBounds | None = None) -> HTTPStatus:
    with pytest.raises(BadRequest) as refused:
        read(data, bounds)
    return refused.value.status


def test_request_body_received_in_pieces_ends_before_the_next_request() -> None:
    reader, body = RequestReader(HttpBounds()), bytes(range(256)) * 1000
    reader.feed(head(b"Content-Length: %d" % len(body)))
    assert reader.head()
    assert reader.body() is None
    data = body + head(b"Content-Length: 2") + b"ok"
    for start, end in ((0, 1000), (1000, len(body) - 1), (len(body) - 1, len(data))):
        assert reader.body() is None
        reader.feed(data[start:end])
    assert reader.body() == body
    assert reader.size == len(data) - len(body)
    assert reader.head()
    assert reader.body() == b"ok"
    assert reader.size == 0


# What a head says


def test_request_head_is_parsed_into_method_target_path_and_headers() -> None:
    found, _, _ = read(head(b"X-A:1", b"x-b: \t two words \t", b"X-C:", line=b"POST /a%20b/?q=%3F HTTP/1.1\r\n"))
    assert (found.method, found.target, found.path) == ("POST", "/a%20b/?q=%3F", "/a%20b/")
    assert found.headers == {"host": "here", "x-a": "1", "x-b": "two words", "x-c": ""}
    assert not found.http_1_0
    assert not found.repeated


def test_repeated_header_values_are_joined_and_the_header_is_marked_as_repeated() -> None:
    found, _, _ = read(head(b"Accept: a", b"X: 1", b"ACCEPT: b,c", b"Accept:"))
    assert found.headers["accept"] == "a, b,c, "
    assert found.repeated == {"accept"}


def test_header_value_can_contain_latin_1_characters_and_tabs() -> None:
    assert read(head(b"X: caf\xe9\tau lait"))[0].headers["x"] == "café\tau lait"


@pytest.mark.parametrize("method", ["HEAD", "get", "FOO", "M-SEARCH", "SOURCE", "DESCRIBE", "QUERY", "X" * 32])
def test_unknown_http_methods_are_parsed_like_known_methods(method: str) -> None:
    found, body, rest = read(head(b"Content-Length: 1", line=f"{method} / HTTP/1.1\r\n".encode()) + b"ab")
    assert (found.method, body, rest) == (method, b"a", b"b")


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("http://there:80/mcp?q", "/mcp", "there:80"),
        ("HTTPS://there", "/", "there"),
        ("http://there?q=/x", "/", "there"),
        ("//x/y", "//x/y", "here"),
    ],
)
def test_request_with_an_absolute_url_as_target_is_parsed_into_path_and_host(target: str, path: str, host: str) -> None:
    found, _, _ = read(head(line=f"GET {target} HTTP/1.1\r\n".encode()))
    assert (found.path, found.headers["host"], found.target) == (path, host, target)


def test_options_request_with_asterisk_target_is_parsed() -> None:
    assert read(head(line=b"OPTIONS * HTTP/1.1\r\n"))[0].path == "*"


def test_http_1_0_request_needs_no_host_header() -> None:
    assert read(head(line=b"GET / HTTP/1.0\r\n", host=b""))[0].http_1_0


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert read(b"\r\n\r\n" + head())[0].method == "POST"


def test_at_most_eight_empty_lines_are_skipped_before_each_request() -> None:
    reader = RequestReader(HttpBounds())
    for _ in range(3):
        reader.feed(b"\r\n" * 8 + head())
        assert reader.head() is not None
        assert reader.body() == b""
    reader.feed(b"\r\n" * 8)
    assert reader.head() is None
    reader.feed(b"\r\n")
    with pytest.raises(BadRequest, match="not an HTTP request"):
        reader.head()


def test_unsupported_upgrade_header_is_ignored_and_the_body_is_read() -> None:
    upgrade = head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: x", b"Content-Length: 2")
    assert read(upgrade + b"{}")[1:] == (b"{}", b"")


# What is refused

BAD_HEADS = {
    "two hosts": head(b"Host: here"),
    "no host": head(host=b""),
    "an empty host": head(host=b"Host: \r\n"),
    "an empty host in HTTP/1.0": head(line=b"GET / HTTP/1.0\r\n", host=b"Host:\r\n"),
    "both lengths": head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "both lengths the other way round": head(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "the same length twice": head(b"Content-Length: 5", b"Content-Length: 5"),
    "two lengths": head(b"Content-Length: 5", b"Content-Length: 6"),
    "a list of lengths": head(b"Content-Length: 5, 5"),
    "a signed length": head(b"Content-Length: +5"),
    "a negative length": head(b"Content-Length: -5"),
    "a hexadecimal length": head(b"Content-Length: 0x5"),
    "an empty length": head(b"Content-Length:"),
    "an endless length": head(b"Content-Length: " + b"9" * 40),
    "a length with a blank inside": head(b"Content-Length: 5 5"),
    "an underscore in a length": head(b"Content-Length: 1_0"),
    "a coding that is not chunked at last": head(b"Transfer-Encoding: chunked, gzip"),
    "chunked twice": head(b"Transfer-Encoding: chunked, chunked"),
    "two codings": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "another coding alone": head(b"Transfer-Encoding: gzip"),
    "identity": head(b"Transfer-Encoding: identity"),
    "an unknown coding": head(b"Transfer-Encoding: xchunked"),
    "a parameter of chunked": head(b"Transfer-Encoding: chunked;q=1"),
    "an empty coding": head(b"Transfer-Encoding:"),
    "a vertical tab before chunked": head(b"Transfer-Encoding: \x0bchunked"),
    "chunks in HTTP/1.0": head(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0\r\n"),
    "a control character": head(b"X: a\x01"),
    "DEL": head(b"X: a\x7f"),
    "NUL": head(b"X: a\x00b"),
    "CR alone in a value": head(b"X: a\rb"),
    "LF alone": head(b"X: a\nY: b"),
    "LF alone behind the request line": head(line=b"GET / HTTP/1.1\n"),
    "a folded line": head(b"X: a", b" b"),
    "a folded first line": head(host=b" Host: here\r\n"),
    "a blank before the colon": head(b"X : a"),
    "an empty name": head(b": a"),
    "no colon": head(b"X"),
    "a name with a control character": head(b"X\x01: a"),
    "a name outside of ASCII": head(b"X\xe9: a"),
    "a blank in the target": head(line=b"GET /a b HTTP/1.1\r\n"),
    "a byte outside of ASCII in the target": head(line=b"GET /\xe9 HTTP/1.1\r\n"),
    "a fragment": head(line=b"GET /mcp#a HTTP/1.1\r\n"),
    "a target without a slash": head(line=b"GET mcp HTTP/1.1\r\n"),
    "an asterisk for GET": head(line=b"GET * HTTP/1.1\r\n"),
    "another scheme": head(line=b"GET ftp://there/ HTTP/1.1\r\n"),
    "a name in the authority": head(line=b"GET http://me:secret@there/ HTTP/1.1\r\n"),
    "no authority": head(line=b"GET http:///mcp HTTP/1.1\r\n"),
    "two blanks": head(line=b"GET  / HTTP/1.1\r\n"),
    "a tab": head(line=b"GET\t/ HTTP/1.1\r\n"),
    "a blank behind the version": head(line=b"GET / HTTP/1.1 \r\n"),
    "no version": head(line=b"GET /\r\n"),
    "a version in lower case": head(line=b"GET / http/1.1\r\n"),
    "another protocol": head(line=b"DESCRIBE / RTSP/1.0\r\n"),
    "a version of two digits": head(line=b"GET / HTTP/01.1\r\n"),
    "no method": head(line=b" / HTTP/1.1\r\n"),
    "a bad method": head(line=b"G(T / HTTP/1.1\r\n"),
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "JSON": b'{"jsonrpc": "2.0"}',
}
OTHER_HEADS = {
    "the preface of HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9 with a version": (505, head(line=b"GET / HTTP/0.9\r\n")),
    "HTTP/1.2": (505, head(line=b"GET / HTTP/1.2\r\n")),
    "gzip and then chunked": (501, head(b"Transfer-Encoding: gzip, chunked")),
    "CONNECT": (501, head(line=b"CONNECT there:443 HTTP/1.1\r\n")),
    "a long method": (501, head(line=b"X" * 33 + b" / HTTP/1.1\r\n")),
    "a long target": (414, head(line=b"GET /" + b"x" * 8192 + b" HTTP/1.1\r\n")),
    "a target without end": (414, b"GET /" + b"x" * 100_000),
    "a long head": (431, head(b"X: " + b"x" * 100_000)),
    "a head without end": (431, head()[:-2] + b"X: " + b"x" * 100_000),
    "many headers": (431, head(*(b"X: %d" % number for number in range(101)))),
}
HOSTILE = {name: (400, data) for name, data in BAD_HEADS.items()} | OTHER_HEADS
"""Requests by what is wrong with them, and the status of each answer."""


@pytest.mark.parametrize("name", HOSTILE)
def test_malicious_request_head_is_refused_with_its_status(name: str) -> None:
    status, data = HOSTILE[name]
    assert refusal(data) == status


@pytest.mark.parametrize("name", [name for name, (_, data) in HOSTILE.items() if len(data) < 600])
def test_malicious_request_headers_are_refused_wherever_the_received_bytes_are_split(name: str) -> None:
    status, data = HOSTILE[name]
    for cut in range(len(data)):
        with pytest.raises(BadRequest) as refused:
            read(data, cuts=cut)
        assert refused.value.status == status


@pytest.mark.parametrize("name", [name for name, (_, data) in HOSTILE.items() if len(data) >= 600])
def test_oversized_request_headers_are_refused_wherever_the_received_bytes_are_split(name: str) -> None:
    status, data = HOSTILE[name]
    for cut in (1, 100, 8_000, 16_383, 16_384, 16_385, len(data) - 1):
        with pytest.raises(BadRequest) as refused:
            read(data, cuts=cut)
        assert refused.value.status == status


def test_request_head_of_exactly_the_maximum_size_is_accepted() -> None:
    bounds = HttpBounds(max_head_bytes=100)
    exactly = head(b"X: " + b"x" * (100 - len(head(b"X: "))))
    assert len(exactly) == 100
    assert read(exactly, bounds)[0].method == "POST"
    assert refusal(exactly.replace(b"X: ", b"X: x"), bounds) == 431


def test_plain_http_server_refuses_tls_bytes_after_the_first_byte() -> None:
    reader = RequestReader(HttpBounds())
    reader.feed(b"\x16")
    with pytest.raises(BadRequest, match="not an HTTP request"):
        reader.head()


def test_header_line_without_a_carriage_return_is_refused_before_all_headers_arrive() -> None:
    reader = RequestReader(HttpBounds())
    reader.feed(b"GET / HTTP/1.1\n")
    with pytest.raises(BadRequest, match="CRLF"):
        reader.head()


# Bodies

CHUNKED = head(b"Transfer-Encoding: Chunked")


def test_http_request_is_parsed_in_the_same_way_wherever_the_received_bytes_are_split() -> None:
    for data in (
        head(b"Content-Length: 5") + b"hello" + b"GET",
        CHUNKED + b'3;a="b";c\r\n\r\n\r\r\n0004\r\n\n\r\n\r\r\n00;x\r\nTrailer: 1\r\nOther: 2\r\n\r\nGET',
        CHUNKED + b"0\r\n\r\nGET",
        b"\r\n" + head() + b"GET",
    ):
        expected = read(data)
        assert expected[2] == b"GET"
        for cut in range(len(data) - 3):
            found = read(data, cuts=cut)
            assert (found[0].headers, found[1], found[2]) == (expected[0].headers, expected[1], expected[2])


def test_chunked_body_is_joined_and_trailers_are_ignored() -> None:
    data = CHUNKED + b"3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\nHost: evil\r\nX: y\r\n\r\n"
    found, body, rest = read(data)
    assert (body, rest) == (b"abc0123456789", b"")
    assert found.headers == {"host": "here", "transfer-encoding": "Chunked"}


@pytest.mark.parametrize(
    "chunks",
    [
        b"\r\n",
        b"x\r\n",
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-1\r\n",
        b" 3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n0\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"3;a\x01\r\nabc\r\n",
        b"3;a\nabc\r\n",
        b"0\r\nX\x01: y\r\n\r\n",
        b"0\r\n\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\n X: y\r\n\r\n",
        b"0\r\nContent-Length: 3\r\n\r\n",
    ],
)
def test_invalid_chunked_encoding_gets_status_400_wherever_the_received_bytes_are_split(chunks: bytes) -> None:
    data = CHUNKED + chunks
    for cut in range(len(CHUNKED), len(data)):
        with pytest.raises(BadRequest) as refused:
            read(data, cuts=cut)
        assert refused.value.status == 400


@pytest.mark.parametrize("size", [1, 9, 15, 16, 17, 255, 70_000])
@pytest.mark.parametrize("written", ["%x", "%X", "000%x", "%x;a=b"])
def test_http_chunk_sizes_in_any_spelling_are_parsed_wherever_the_received_bytes_are_split(
    size: int, written: str
) -> None:
    chunk = (written % size).encode() + b"\r\n" + b"\r\n0\r\n\r\n"[:size].ljust(size, b"\n") + b"\r\n"
    data = CHUNKED + chunk * 3 + b"0\r\n\r\nGET"
    expected = read(data)
    assert (len(expected[1]), expected[2]) == (3 * size, b"GET")
    for cut in range(len(CHUNKED), min(len(data) - 3, 400)):
        assert read(data, cuts=cut)[1:] == expected[1:]


def test_endless_chunk_header_line_is_refused() -> None:
    reader = RequestReader(HttpBounds())
    reader.feed(CHUNKED)
    assert reader.head() is not None
    with pytest.raises(BadRequest, match="line with its size"):
        for _ in range(10_000):
            reader.feed(b"1;" + b"x")
            reader.body()


def test_request_body_of_exactly_the_maximum_size_is_accepted() -> None:
    bounds = HttpBounds(max_body_bytes=5)
    assert read(head(b"Content-Length: 5") + b"hello", bounds)[1] == b"hello"
    assert read(CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", bounds)[1] == b"hello"


def test_request_body_beyond_the_maximum_size_gets_status_413_before_it_is_read() -> None:
    bounds = HttpBounds(max_body_bytes=5)
    assert refusal(head(b"Content-Length: 6"), bounds) == 413
    assert refusal(head(b"Content-Length: 6") + b"hello!", bounds) == 413
    assert refusal(CHUNKED + b"3\r\nhel\r\n3\r\nlo!", bounds) == 413


@pytest.mark.parametrize("framing", [b"3;" + b"x" * 3000, b"0\r\nX: " + b"x" * 3000, b"1\r\nx\r\n" * 600])
def test_chunk_extensions_and_trailers_beyond_the_limit_get_status_400(framing: bytes) -> None:
    bounds = HttpBounds(max_head_bytes=1024, max_body_bytes=8192)
    assert refusal(CHUNKED + framing, bounds) == 400


def test_incomplete_body_uses_only_the_memory_of_the_received_bytes() -> None:
    reader = RequestReader(HttpBounds())
    reader.feed(head(b"Content-Length: 4000000"))
    assert reader.head() is not None
    for _ in range(1000):
        assert reader.body() is None
        reader.feed(b"x")
    assert reader.body() is None
    assert not reader.unread
