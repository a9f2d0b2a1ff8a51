"""Cookies of one origin: which are stored, which are sent with a request, and their bounds."""

from __future__ import annotations

import pytest

from trio_mcp.transports.http_client import client
from trio_mcp.transports.http_client.client import Cookies
from trio_mcp.transports.http_client.connection import request_head
from trio_mcp.transports.http_client.origins import split_url


def sent(url: str, lines: list[str], target: str | None = None) -> str | None:
    """Return the cookies of a request for ``target`` after ``lines`` came from ``url``."""
    origin, asked = split_url(url)
    jar = Cookies(origin)
    jar.store(asked, lines)
    headers = jar.add_to(asked if target is None else target, [])
    request_head("GET", "/", headers, b"")  # raises for what no header can have
    return headers[0][1].decode("latin-1") if headers else None


@pytest.mark.parametrize(
    ("line", "cookie"),
    [
        ("AWSALB=abc+/=; Expires=Sun, 06 Dec 2099 10:00:00 GMT; Path=/", "AWSALB=abc+/="),
        ("a=b", "a=b"),
        (" a = b ; HttpOnly; SameSite=None; Partitioned", "a=b"),
        ('a="q v"; Version=1', 'a="q v"'),
        ("a=", "a="),
        ("\xfc=\xff", "\xfc=\xff"),
        ("a=b\tc;;;=;", "a=b\tc"),
        *((line, None) for line in ("", "=x", "word", ";", "; path=/")),
        ("a=b; Path=/mcp", "a=b"),
        ("a=b; Path=/mc", None),
        ("a=b; Path=/other", None),
        ("a=b; Path=relative", "a=b"),
        ("a=b; Domain=127.0.0.1", "a=b"),
        ("a=b; Domain=example.com", None),
        ("a=b; Domain=1.127.0.0.1", None),
        ("a=b; Secure", None),
        ("a=b; Max-Age=60", "a=b"),
        ("a=b; Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "a=b"),
        ("a=b; Max-Age=0", None),
        ("a=b; Max-Age=-1", None),
        *((f"a=b; Max-Age{age}", "a=b") for age in ("", "=", "=x", "=nan", f"={'9' * 4000}")),
        ("a=b; Expires=Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("a=b; Expires=Thu, 01-Jan-1970 00:00:00 GMT", None),
        *((f"a=b; Expires={date}", "a=b") for date in ("", "soon", "1" * 4000, "Sun, 99 Dec 99999 99:99:99 GMT")),
        (f"a={'b' * 4095}", None),
    ],
)
def test_http_client_sends_a_cookie_only_if_the_attributes_of_the_cookie_allow_it(
    line: str, cookie: str | None
) -> None:
    assert sent("http://127.0.0.1:8000/mcp", [line]) == cookie


@pytest.mark.parametrize(
    ("url", "line", "target", "is_sent"),
    [
        ("https://a.example/mcp", "a=b; Secure; Domain=.A.example", "/mcp", True),
        ("https://b.a.example/mcp", "a=b; Domain=a.example", "/mcp", True),
        ("https://a.example/mcp", "a=b; Domain=b.a.example", "/mcp", False),
        ("https://ba.example/mcp", "a=b; Domain=a.example", "/mcp", False),
        ("http://localhost/mcp", "a=b; Domain=localhost", "/mcp", True),
        ("http://a.example/v1/mcp?x=/y/", "a=b", "/v1/other?z", True),
        ("http://a.example/v1/mcp", "a=b", "/v2/mcp", False),
        ("http://a.example/v1/mcp", "a=b", "/v1", True),
        ("http://a.example/mcp", "a=b; Path=/mcp", "/mcp/sub", True),
        ("http://a.example/mcp", "a=b; Path=/mcp", "/mcp2", False),
    ],
)
def test_cookie_is_sent_only_to_matching_hosts_and_paths(url: str, line: str, target: str, is_sent: bool) -> None:
    assert (sent(url, [line], target) is not None) == is_sent


def test_cookie_is_replaced_by_a_new_value_and_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    jar = Cookies(split_url("http://a.example/")[0])
    now = 1000.0
    monkeypatch.setattr(client.time, "time", lambda: now)
    jar.store("/", ["a=1", "b=2; Max-Age=5", "a=3"])
    assert jar.add_to("/", []) == [(b"Cookie", b"b=2; a=3")]
    now = 1005.0
    assert jar.add_to("/", []) == [(b"Cookie", b"a=3")]
    jar.store("/", ["a=; Max-Age=0"])
    assert jar.add_to("/", []) == []


def test_cookies_given_by_the_user_are_sent_before_stored_cookies() -> None:
    jar = Cookies(split_url("http://a.example/")[0])
    jar.store("/", ["a=1"])
    assert jar.add_to("/", [(b"cookie", b"u=v"), (b"X", b"y")]) == [(b"X", b"y"), (b"Cookie", b"u=v; a=1")]


def test_number_and_size_of_stored_cookies_are_limited() -> None:
    many = sent("http://a.example/", [f"k{number}=v" for number in range(200)])
    assert many is not None
    assert many.split("; ") == [f"k{number}=v" for number in range(150, 200)]
    long = sent("http://a.example/", [f"k{number}={'v' * 3000}" for number in range(20)])
    assert long is not None
    assert len(long) < 8300
    assert "k19=" in long
