"""Readable text of HTTP error responses."""

from __future__ import annotations

import time

import pytest

from trio_mcp import HTTPError
from trio_mcp.connecting.http.responses import body_text, is_passing, seconds_until_retry


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ""),
        (b"  not\r\n found\t", "not found"),
        (b"<!doctype html><title>Oops</title><style>p {}</style><p>a &lt; b</p><script>x</script>", "Oops a < b"),
        (b"<h1>Same</h1><p>Same</p>", "Same"),
        (b"a < b and c > d", "a < b and c > d"),
        (b"\xff\x00\x1b[31mred", "\N{REPLACEMENT CHARACTER} [31mred"),
        (b"x" * 600, "x" * 499 + "…"),
        (b"a &#38; &#x26; &#%s; b" % (b"9" * 5000), "a & & \N{REPLACEMENT CHARACTER} b"),
    ],
)
def test_http_error_body_is_shortened_to_readable_text(body: bytes, words: str) -> None:
    assert body_text(body) == words


@pytest.mark.parametrize("piece", [b"<script", b"<", b"<a", b"<script>", b"&amp;", b"<!--", b"a", b"a ", b"-", b"&#9"])
@pytest.mark.parametrize("first", [b"", b"<", b"<p>", b"<a ", b"&#9"])
def test_http_error_body_is_shortened_to_text_in_bounded_time(piece: bytes, first: bytes) -> None:
    began = time.process_time()
    body_text(first + piece * 100_000)
    assert time.process_time() - began < 1


def test_http_error_contains_status_phrase_and_server_message() -> None:
    assert str(HTTPError._refused(429, "slow down")) == (
        "the server answered with HTTP status 429 (Too Many Requests): slow down"
    )
    assert str(HTTPError._refused(599, "")) == "the server answered with HTTP status 599"


def test_client_treats_only_some_http_statuses_as_temporary() -> None:
    assert [status for status in (400, 401, 403, 404, 405, 408, 429, 500, 501, 503) if is_passing(status)] == [
        408,
        429,
        500,
        501,
        503,
    ]


NOW = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "120"}, 120),
        ({"retry-after": "Sun, 06 Nov 1994 08:51:37 GMT", "date": NOW}, 120),
        ({"retry-after": "Sunday, 06-Nov-94 08:51:37 GMT", "date": NOW}, 120),
        ({"retry-after": "Sun Nov  6 08:51:37 1994", "date": NOW}, 120),
        ({"retry-after": "Sun, 06 Nov 1994 08:40:00 GMT", "date": NOW}, 0),
        ({"retry-after": NOW}, 0),
        *[
            ({"retry-after": nonsense, "date": NOW}, None)
            for nonsense in ("", "-1", "1.5", "\u0661", "9" * 20, "soon", "Sun, 99 Nov 1994 08:51:37 GMT", "1 " * 4000)
        ],
    ],
)
def test_retry_after_header_is_read_as_seconds_or_date(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_until_retry(headers) == seconds
