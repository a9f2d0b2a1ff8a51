"""Our reader of requests and h11 agree, but for what is named here: each difference has its clause.

Whatever ours accepts, h11 accepts as the same request; whatever ours refuses and h11 accepts, ours has a reason for.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import h11
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.transports.http.application import BadRequest, HttpBounds
from trio_mcp.transports.http.requests import RequestReader

LAXER = {
    r"\A(\r\n)+": "RFC 9112 section 2.2: a server SHOULD ignore an empty line before the request line",
}
"""Bytes that ours accepts and h11 does not."""

STRICTER = {
    r"does not end with CRLF|Missing expected CR": "RFC 9112 section 2.2: a bare LF MAY be a line end, and need not",
    r"not an HTTP request$|HTTP/1.1 request line": "RFC 9112 section 3.2: no fragment in a target; a method is a token",
    r"supported HTTP versions": "RFC 9110 section 2.5: only HTTP/1.0 and HTTP/1.1 are spoken",
    r"is not supported": "RFC 9112 section 3: 501 for methods that are longer than any known; CONNECT is for proxies",
    r"Invalid (char|header) ": "RFC 9110 sections 5.1 and 5.5: no control characters in names and values",
    r"Invalid (char|characters) in url|Unexpected (start )?char in url": "RFC 9112 section 3.2: a target is an URI",
    r"whitespace after header value|space after start line": "RFC 9112 section 5.2: a server rejects folded lines",
    r"invalid request target": "RFC 9112 section 3.2: the four forms of a target",
    r"Host header is missing or empty": "RFC 9110 section 4.2.1: an empty host is invalid in an http URI",
    r"be repeated|Duplicate Content-Length": "RFC 9112 section 6.3: a list of equal lengths MAY be taken, and need not",
    r"Invalid character in Content-Length|Content-Length overflow|Empty Content": "RFC 9110 section 8.6: digits",
    r"Transfer-Encoding": "RFC 9112 sections 6.1 and 6.3: beside a length, in HTTP/1.0, or in a trailer",
    r"Content-Length can't be present": "RFC 9112 section 6.3, and RFC 9110 section 6.5.1 for trailers",
    r"malformed chunk": "RFC 9112 section 7.1: no blanks around sizes, extensions in their grammar",
}
"""Words of our refusals where h11 accepts."""

BOUNDS = HttpBounds()

METHODS = st.sampled_from(
    [b"POST"] * 9 + [b"GET", b"HEAD", b"OPTIONS", b"FOO", b"M-SEARCH", b"CONNECT", b"PRI", b"post"]
)
TARGETS = st.sampled_from(
    [b"/mcp"] * 9
    + [
        b"/",
        b"/a?b=%20#c",
        b"//x",
        b"*",
        b"http://there/mcp?x",
        b"https://there",
        b"there:80",
        b"/\xc3\xa9",
        b"mcp",
    ]
)
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 20 + [b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1"])
BLANKS = st.sampled_from([b" ", b" ", b"", b"\t", b"  ", b" \t "])
VALUES = st.sampled_from([b"a", b"", b"a b", b"caf\xe9", b"a\tb", b"a, b", b'"quoted"', b"a\x01", b"a\x7f", b":", b"0"])
NAMES = st.sampled_from([b"X", b"x-y", b"Accept", b"Mcp-Name", b"X_Y", b"X!", b"Upgrade", b"Connection", b"Expect"])
LENGTHS = st.sampled_from([b"5", b"05", b"0", b"5, 5", b"+5", b"5 5", b"", b"-1", b"1_0", b"6", b"0000005"])
CODINGS = st.sampled_from([b"chunked", b"Chunked", b"gzip, chunked", b"identity", b"chunked, chunked", b"", b"x"])
BODIES = st.sampled_from(
    [
        b"",
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"2\r\nhe\r\n03\r\nllo\r\n00\r\nX: y\r\n\r\n",
        b'4;a;b=c;d="e"\r\n\r\n\r\n\r\n0;f\r\n\r\n',
        b"5 \r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n",
        b"5;\xff\r\nhello\r\n0\r\nX\r\n\r\n",
    ]
)
NEXT = st.sampled_from([b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n", b"garbage"])
SEEDS = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b",", b";", b"0", b"\x80", b"\r\n ", b"\x0b"]
)


@st.composite
def fields(draw: Any) -> bytes:
    name, values = draw(
        st.sampled_from([(b"Content-Length", LENGTHS), (b"Transfer-Encoding", CODINGS), (b"Host", VALUES)])
        | NAMES.map(lambda name: (name, VALUES))
    )
    return name + b":" + draw(BLANKS) + draw(values) + draw(BLANKS) + b"\r\n"


@st.composite
def requests(draw: Any) -> bytes:
    """A request whose head and body often fit to each other, with a few bytes changed."""
    framing, body = draw(
        st.sampled_from(
            [
                (b"", b""),
                (b"Content-Length: 5\r\n", b"hello"),
                (b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
            ]
        )
        | BODIES.map(lambda body: (b"Transfer-Encoding: chunked\r\n", body))
        | st.tuples(fields(), BODIES)
    )
    harmless = st.sampled_from([b"X: a\r\n", b"Accept:\t*/*, a \r\n", b"ACCEPT: b\r\n", b"X!:caf\xe9\r\n", b"y:\r\n"])
    lines = [b"Host: here\r\n", framing, *draw(st.lists(harmless, max_size=3))]
    if draw(st.integers(0, 3)) == 0:
        lines.append(draw(fields()))
    data = b" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS))) + b"\r\n"
    data = bytearray(data + b"".join(draw(st.permutations(lines))) + b"\r\n" + body + draw(NEXT))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 2))] = draw(SEEDS)
    return bytes(data)


@attrs.frozen
class Read:
    """What a reader makes of the first request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    rest: bytes


def by_us(*pieces: bytes) -> Read | str | None:
    """The request, why it is refused, or `None` when bytes are missing."""
    reader = RequestReader(BOUNDS)
    head, body = None, None
    rest = list(pieces)
    try:
        while rest and body is None:
            reader.feed(rest.pop(0))
            head = head or reader.head()
            body = None if head is None else reader.body()
    except BadRequest as refused:
        return refused.reason
    if head is None or body is None:
        return None
    headers = dict(head.headers)
    if not head.target.startswith("/") and head.target != "*":
        headers.pop("host", None)  # RFC 9112 section 3.2.2: the authority of the target replaces the header
    return Read(head.method, head.target, headers, body, bytes(reader.unread) + b"".join(rest))


def by_h11(data: bytes) -> Read | str | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            match connection.next_event():
                case h11.Request() as request:
                    pass
                case h11.Data(data=piece):
                    body += bytes(piece)
                case h11.EndOfMessage():
                    break
                case _:  # NEED_DATA, or PAUSED
                    return None
    except h11.RemoteProtocolError as refused:
        return str(refused)
    assert request is not None
    target = request.target.decode("ascii")
    headers: dict[str, str] = {}
    for name, value in request.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    if not target.startswith("/") and target != "*":
        headers.pop("host", None)
    return Read(request.method.decode("ascii"), target, headers, body, bytes(connection.trailing_data[0]))


def alike(read: Read) -> Read:
    """``read`` without the case of a transfer coding, which h11 does not keep."""
    headers = {name: text.lower() if name == "transfer-encoding" else text for name, text in read.headers.items()}
    return attrs.evolve(read, headers=headers)


@settings(max_examples=examples(1500))
@given(requests())
@example(b"\r\nPOST / HTTP/1.1\r\nHost: x\r\n\r\n")
def test_http_parser_reads_requests_like_h11_except_for_listed_differences(data: bytes) -> None:
    ours, theirs = by_us(data), by_h11(data)
    event(f"ours {type(ours).__name__}, h11 {type(theirs).__name__}")
    match ours, theirs:
        case Read(), Read():
            assert alike(ours) == alike(theirs)
        case Read(), _:
            rest = data
            for laxer in LAXER:
                rest = re.sub(laxer.encode(), b"", rest)
            assert rest != data, f"h11 says {theirs!r}"
            again = by_h11(rest)
            assert isinstance(again, Read), again
            assert alike(ours) == alike(again)
        case str(), Read():
            assert any(re.search(words, ours) for words in STRICTER), ours
        case None, Read():
            raise AssertionError("ours waits for bytes, and h11 has a request")
        case _:
            pass


@settings(max_examples=examples(300))
@given(requests(), st.data())
def test_http_parser_gives_the_same_result_wherever_the_received_bytes_are_split(
    data: bytes, more: st.DataObject
) -> None:
    cuts = sorted(more.draw(st.sets(st.integers(0, len(data)), max_size=4)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    whole, cut = by_us(data), by_us(*pieces)
    assert whole == cut or (isinstance(whole, str) and isinstance(cut, str))
