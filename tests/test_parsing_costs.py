"""No byte of a peer costs more than a few times what plain JSON of that length costs, before and after authorization.

Texts are made of short pieces, repeated to a length: what takes a step for each piece, or reads all of the rest again
for each, stands out. The instructions of Python are counted, which no machine and no load changes. A loop in C that
copies the rest of its input is not seen by itself, but the loop around it is: hence the small budgets.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.instructions import instructions_of
from trio.testing import memory_stream_pair

from trio_mcp.auth.credentials import parse_challenges
from trio_mcp.auth.fetching import FetchFailed, UrlRules, nearness, server_metadata_urls
from trio_mcp.auth.oauth_client.browser import _state_in  # pyright: ignore[reportPrivateUsage]
from trio_mcp.auth.resource_server.proof_checks import ProofChecks
from trio_mcp.auth.resource_server.protected import Malformed, presented_token
from trio_mcp.auth.resource_server.verification import ExpectedClaims, Untrusted, read_signed
from trio_mcp.connecting.http.responses import body_text, content_type, seconds_until_retry
from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.errors import CodedError
from trio_mcp.protocol.authorization import (
    ClientInformation,
    InvalidDocument,
    OAuthErrorResponse,
    ResourceMetadata,
    ServerMetadata,
    TokenResponse,
)
from trio_mcp.protocol.param_headers import decoded
from trio_mcp.recording.masking import Masking
from trio_mcp.runtime.peer import Principal
from trio_mcp.runtime.transport import ConnectionLost
from trio_mcp.server.offers.uris import UriTemplate, _encoded, check_length, normal_uri  # pyright: ignore[reportPrivateUsage]
from trio_mcp.serving.http.endpoint import RequestAdmission
from trio_mcp.serving.http.responses import Cors, EndpointSettings
from trio_mcp.transports.host_checks import host_checks_for
from trio_mcp.transports.http.application import BadRequest, HttpBounds, RequestHead
from trio_mcp.transports.http.requests import RequestReader
from trio_mcp.transports.http_client.connection import BadResponse, Reply
from trio_mcp.transports.http_client.connection import read_head as read_answer
from trio_mcp.transports.http_client.origins import split_url
from trio_mcp.transports.sse import EventReader, EventTooLong
from trio_mcp.transports.websocket.handshake import Rejection, read_upgrade

SIZE: Final = 6 * 1024
"""Bytes of each text, below the bounds of heads, tokens and URLs."""
FEW: Final = 3.0
"""Instructions for each byte: less than for a loop with a step for every other byte."""
ONCE: Final = 12_000
"""Instructions of each call whatever its text."""


@attrs.frozen
class Parser:
    """Reads a text of a peer, which is made of ``pieces``."""

    read: Callable[[bytes], object]
    pieces: tuple[bytes, ...]
    per_byte: float = FEW
    why: str = ""
    """Why the budget is larger than for others."""


# HTTP


BOUNDS = HttpBounds()
LINE = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"


def read_requests(data: bytes, *cuts: int) -> None:
    reader = RequestReader(BOUNDS)
    has_head = False
    with suppress(BadRequest):
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            reader.feed(data[start:end])
            while (reader.body() is not None) if has_head else (reader.head() is not None):
                has_head = not has_head


def read_head(headers: bytes) -> None:
    read_requests(LINE + headers + b"\r\n\r\n")


def read_chunks(chunks: bytes) -> None:
    read_requests(LINE + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"\r\n0\r\n\r\n")


def read_in_two(data: bytes) -> None:
    read_requests(LINE + b"Transfer-Encoding: chunked\r\n\r\n" + data, 60, len(data) // 2)


CHECKS = host_checks_for("127.0.0.1", ["https://app.example.com", "http://localhost:*"], None)
ENTRANCE = RequestAdmission(EndpointSettings("/mcp", CHECKS), Cors(CHECKS), None, stateless=False)


def enter(method: str = "POST", **headers: str) -> None:
    given = {"host": "localhost", "content-type": "application/json", "accept": "*/*"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = RequestHead(method, "/mcp", "/mcp", given, frozenset(), http_1_0=False)
    ENTRANCE.admit(head)
    assert head.asks_for_websocket in (True, False)
    assert head.is_last in (True, False)
    with suppress(BadRequest):
        head.waits_for_continue()


def header(name: str, method: str = "POST") -> Callable[[bytes], None]:
    return lambda text: enter(method, **{name: text.decode("latin-1")})


def preflight(text: bytes) -> None:
    enter("OPTIONS", origin="http://localhost:1", access_control_request_headers=text.decode("latin-1"))


def upgrade(text: bytes) -> None:
    async def read() -> None:
        ours, theirs = memory_stream_pair()
        await theirs.send_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + text + b"\r\n\r\n")
        with suppress(Rejection):
            (await read_upgrade(ours)).tokens("connection")

    trio.run(read)


class Answering:
    """A connection from which one answer comes."""

    name = "here"

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._data = self._data[:most], self._data[most:]
        return data

    def lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(reason)


def answer(data: bytes) -> None:
    async def read() -> None:
        connection: Any = Answering(data)
        with suppress(ConnectionLost, BadResponse):
            reply = Reply(connection, *await read_answer(connection, b"POST", 16 * 1024))
            content_type(reply)
            seconds_until_retry(reply.headers)
            assert reply.keep_alive_timeout is None or reply.keep_alive_timeout >= 0
            await reply.read(1_000_000)

    trio.run(read)


def answer_head(headers: bytes) -> None:
    answer(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n")


def answer_body(chunks: bytes) -> None:
    answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"\r\n0\r\n\r\n")


def answer_value(text: bytes) -> None:
    for name in (b"Keep-Alive", b"Retry-After", b"Content-Type", b"Date"):
        answer_head(name + b": " + text)


def read_events(data: bytes) -> None:
    reader = EventReader(1_000_000)
    with suppress(EventTooLong):
        reader.feed(data[: len(data) // 2])
        reader.feed(data[len(data) // 2 :])


def read_param(data: bytes) -> None:
    with suppress(ValueError):
        decoded(data.decode("latin-1"))
    with suppress(ValueError):
        decoded(f"=?base64?{data.decode('latin-1')}?=")


# OAuth


def document(kind: Any, members: str) -> Callable[[bytes], None]:
    def read(text: bytes) -> None:
        for whole in (text, b'{"%b": "%b"}' % (members.encode(), text), b'{"%b": [%b]}' % (members.encode(), text)):
            with suppress(InvalidDocument):
                kind.from_json(whole)

    return read


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


PROOFS = ProofChecks("https://mcp.example.com/mcp", None, lambda: 0.0)
BOUND = Principal(issuer="https://i.example.com", subject="s", client_id=None, scopes=frozenset(), key_thumbprint="t")
CLAIMS = ExpectedClaims(issuers=("https://i.example.com",), audiences=frozenset(("https://mcp.example.com",)), leeway=0)


def read_token(text: bytes) -> None:
    with suppress(Malformed):
        found = presented_token(f"Bearer {text.decode('latin-1')}", ("bearer",))
        assert found is not None
        found.check()
    with suppress(Untrusted):
        read_signed(text.decode("latin-1"), ("ES256",), 10 * SIZE)
    with suppress(Untrusted):
        read_signed(f"{encoded(text)}.{encoded(b'{}')}.x", ("ES256",), 10 * SIZE)


def read_claims(text: bytes) -> None:
    word = text.decode("latin-1")
    for claims in ({"aud": word}, {"aud": [word[:50], *word[50:].split(",")[:50]]}, {"iss": word}, {"scope": word}):
        with suppress(Untrusted):
            CLAIMS.check_audience(claims)
        with suppress(Untrusted):
            CLAIMS.check_issuer(claims)
        with suppress(Untrusted):
            CLAIMS.principal({"sub": "s", **claims}, None)


def read_proof(text: bytes) -> None:
    word = text.decode("latin-1")[:2000]
    head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": {"kty": "EC", "crv": word[:500], "x": word[:500], "y": "y"}}
    for proof in (f"{encoded(head)}.{encoded({'htu': word, 'htm': 'POST', 'jti': 'x'})}.{encoded(b'x')}", word):
        with suppress(Untrusted):
            PROOFS.check(proof, "POST", "token", BOUND)


def read_url(text: bytes) -> None:
    word = text.decode("utf-8", "replace")
    for url in (word, f"https://{word}/", f"https://a.example/{word}", f"http://[{word}]:1/?{word}"):
        with suppress(ValueError):
            split_url(url)
        with suppress(FetchFailed):
            UrlRules(public_addresses_only=True).check(url[:2048])
        with suppress(ValueError):
            list(server_metadata_urls(url[:2048]))
    nearness(word[:253])


TEMPLATE = UriTemplate("a://{one}/{two}/x?{three}&y={four}")
PATHS = UriTemplate("a://{one}/{path*}/end")
QUERY = UriTemplate("a://x/{path*}{?one,two}")


def match_uri(text: bytes) -> None:
    uri = text.decode("latin-1")
    normal_uri.cache_clear()
    _encoded.cache_clear()
    for each in (uri, f"a://{uri}", f"a://x/{uri}/x?{uri}&y={uri}", f"a://x/{uri}/end"):
        with suppress(CodedError):
            check_length(each)
            TEMPLATE.match(each)
            PATHS.match(each)
            QUERY.match(each)
            normal_uri(each)


def mask(text: bytes) -> None:
    word = text.decode("utf-8", "replace")
    Masking().masked({"arguments": {"text": word, word: [word]}})


HEAD_PIECES = (
    b"\r\n",
    b"\r",
    b"\n",
    b"A:b\r\n",
    b"a: ",
    b": ",
    b",",
    b" ",
    b"\t",
    b";",
    b"x",
    b"\xe9",
    b"Accept: a,\r\n",
)
LIST_PIECES = (
    b",",
    b"a,",
    b"*/*,",
    b"*/*;q=0,",
    b"text/*",
    b";",
    b"=",
    b"q=0",
    b" ",
    b"\t",
    b'"',
    b"\\",
    b"close,",
    b"x",
)
CHUNK_PIECES = (
    *(b"\r\n", b"0", b"1\r\nx\r\n", b"01\r\nx\r\n", b"2\r\n\r\n\r\n", b"f\r\n\r\n0\r\n\r\n0123456\r\n"),
    *(b"1;a=b\r\nx\r\n", b"10\r\n0123456789012345\r\n", b"fff\r\n", b"A", b";"),
)
URL_PIECES = (
    *(b"a", b"/", b".", b":", b"@", b"%", b"%41", b"[", b"]", b"?", b"&", b"=", b"#", b"\xc3\xbc", b"xn--", b"0x7f."),
    *(b"1.", b"\xe2\x93\x90", b"-", b"..", b"%2f"),
)
JSON_PIECES = (b"[", b"]", b"{", b'"', b",", b'"a":', b"\\", b"\\u0041", b"0", b"1e9", b"null", b" ", b'"x",', b"[],")
TOKEN_PIECES = (
    *(b"a", b".", b"=", b"-", b"eyJ", b" ", b",", b"\xe9", b"a.b.", b"/", b"xn--"),
    *(b"https://a.example,", b"https://[::1],", b"https://mcp.example.com,", b"HTTPS://mcp.example.com:443,"),
)

PARSERS: dict[str, Parser] = {
    "requests": Parser(
        read_requests, (*HEAD_PIECES, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", LINE), 20, "each piece is a request"
    ),
    "heads": Parser(read_head, HEAD_PIECES),
    "chunks": Parser(read_chunks, CHUNK_PIECES),
    "chunks in two": Parser(read_in_two, CHUNK_PIECES),
    "Accept": Parser(header("accept"), LIST_PIECES),
    "Content-Type": Parser(header("content_type"), LIST_PIECES),
    "Host": Parser(header("host"), LIST_PIECES),
    "Origin": Parser(header("origin"), LIST_PIECES),
    "Connection": Parser(header("connection"), LIST_PIECES),
    "Upgrade": Parser(header("upgrade", "GET"), (*LIST_PIECES, b"websocket,")),
    "Expect": Parser(header("expect"), LIST_PIECES),
    "Access-Control-Request-Headers": Parser(preflight, (*LIST_PIECES, b"mcp-param-a,")),
    "requests for WebSockets": Parser(upgrade, HEAD_PIECES),
    "headers of parameters": Parser(read_param, (b"a", b"=", b"YQ==", b"=?base64?", b"?=", b"\xe9", b"+")),
    "heads of answers": Parser(answer_head, HEAD_PIECES, 45, "h11 reads each header, of 32 KiB at most"),
    "values of answers": Parser(answer_value, LIST_PIECES, 120, "four answers, each by h11"),
    "chunks of answers": Parser(answer_body, CHUNK_PIECES, 130, "h11 reads each chunk"),
    "events": Parser(
        read_events,
        (b"\n", b"\r", b"\r\n", b":", b":\n", b"a\n", b"id\n", b"data\n", b"data: {}\n\n", b"retry: 1\n"),
        *(35, "each line is one, as a message is"),
    ),
    "challenges": Parser(
        lambda text: parse_challenges(text.decode("latin-1")),
        (b",", b'"', b"a", b"=", b"a=b,", b'a="b",', b"Bearer ", b"Basic,", b"\\", b" ", b"\t", b"a=", b'="'),
        *(10, "600 parts are looked at, whatever the length"),
    ),
    "words of pages": Parser(
        body_text,
        (b"<", b">", b"<a", b"<a>", b"&", b"&#1", b"x", b" ", b"</script>", b"<script>"),
        25,
        "16 KiB at most",
    ),
    "metadata of resources": Parser(document(ResourceMetadata, "scopes_supported"), JSON_PIECES),
    "metadata of servers": Parser(document(ServerMetadata, "scopes_supported"), JSON_PIECES),
    "tokens granted": Parser(document(TokenResponse, "access_token"), JSON_PIECES),
    "registrations": Parser(document(ClientInformation, "redirect_uris"), JSON_PIECES),
    "errors of OAuth": Parser(document(OAuthErrorResponse, "error"), JSON_PIECES),
    "callbacks": Parser(
        lambda text: _state_in(f"http://127.0.0.1/?{text.decode('latin-1')}"),
        (b"&", b"=", b"a=b&", b"%41", b"+", b";"),
        *(60, "the decoding of percent signs is written in Python"),
    ),
    "tokens": Parser(read_token, TOKEN_PIECES),
    "claims": Parser(read_claims, TOKEN_PIECES),
    "proofs": Parser(read_proof, TOKEN_PIECES),
    "URLs": Parser(read_url, URL_PIECES),
    "URIs": Parser(match_uri, URL_PIECES, 60, "the decoding of percent signs is written in Python"),
    "JSON": Parser(decode, JSON_PIECES),
    "texts that are masked": Parser(
        mask,
        (
            *URL_PIECES,
            *JSON_PIECES,
            b"eyJ",
            b"token=",
            b"password: ",
            b"bearer ",
            b"-----BEGIN PRIVATE KEY-----",
            b"<a ",
        ),
        *(250, "three texts, in which a name may stand at every other byte"),
    ),
}


def cost(parser: Parser, text: bytes) -> float:
    """The instructions for each byte of ``text``."""
    parser.read(text[:100])  # what is done at the first use
    return max(0, instructions_of(lambda: parser.read(text)) - ONCE) / len(text)


def filled(unit: bytes, before: bytes = b"", behind: bytes = b"") -> bytes:
    return before + unit * ((SIZE - len(before) - len(behind)) // len(unit)) + behind


def assert_cheap(name: str, *texts: bytes) -> None:
    parser = PARSERS[name]
    for text in texts:
        spent = cost(parser, text)
        assert spent <= parser.per_byte, f"{spent:.1f} instructions for each byte of {text[:60]!r}…"


@pytest.mark.parametrize("name", PARSERS)
def test_input_with_many_repetitions_is_parsed_in_linear_time(name: str) -> None:
    assert_cheap(name, *(filled(piece) for piece in PARSERS[name].pieces))


def test_repeated_challenge_parameters_are_parsed_in_linear_time() -> None:
    assert_cheap("challenges", *(filled(unit, b"Bearer ") for unit in (b'a="b",', b'a="\\b",', b'a="b" ', b"a=b,")))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_random_input_is_parsed_in_linear_time(name: str, data: st.DataObject) -> None:
    pieces = st.sampled_from(PARSERS[name].pieces) | st.binary(min_size=1, max_size=3)
    units = st.lists(pieces, min_size=1, max_size=4).map(b"".join)
    assert_cheap(name, filled(data.draw(units), data.draw(st.just(b"") | units), data.draw(st.just(b"") | units)))


@pytest.mark.parametrize("name", ["requests", "chunks", "events"])
def test_input_that_arrives_byte_by_byte_is_parsed_in_linear_time(name: str) -> None:
    """What is read again with each byte that comes would cost more and more."""
    unit = {"requests": b"a", "chunks": b"1\r\nx\r\n", "events": b"data: {}\n\n"}[name]
    begin = LINE + (b"X: " if name == "requests" else b"Transfer-Encoding: chunked\r\n\r\n")

    def read(count: int) -> None:
        data = unit * (count // len(unit))
        if name == "events":
            reader = EventReader(1_000_000)
            for index in range(len(data)):
                reader.feed(data[index : index + 1])
        else:
            read_requests(begin + data, *range(len(begin), len(begin) + len(data)))

    read(100)
    short, long = (instructions_of(lambda size=size: read(size)) for size in (1500, 3000))
    assert long < 2.2 * short


def test_instruction_counter_detects_a_slow_parser() -> None:
    def step_by_step(text: bytes) -> None:
        for _ in text:
            pass

    def reading_again(text: bytes) -> None:
        while text.startswith(b"\r\n"):
            text = text[2:]

    assert cost(Parser(step_by_step, ()), filled(b"x")) > 1
    assert cost(Parser(reading_again, ()), filled(b"\r\n")) > FEW
