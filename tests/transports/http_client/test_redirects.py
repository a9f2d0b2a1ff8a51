"""A redirect is followed where it stays at home and leaves the request as it is."""

from __future__ import annotations

import pytest
from tests.transports.http_client.scripted import OK, Visitor, scripted

from trio_mcp.transports.http_client.client import REDIRECT_LIMIT, HttpClient, redirected
from trio_mcp.transports.http_client.origins import Origin

SECURE = Origin("https", "example.com", 443)
PLAIN = Origin("http", "example.com", 80)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/mcp/", "/mcp/"),
        ("mcp/", "/api/mcp/"),
        ("../x", "/x"),
        ("?again", "/api/mcp?again"),
        ("https://example.com/elsewhere", "/elsewhere"),
        ("https://EXAMPLE.com:443/elsewhere#part", "/elsewhere"),
        ("//example.com/elsewhere", "/elsewhere"),
        # Another server, or the same without TLS, must not see the credentials.
        ("http://example.com/mcp/", None),
        ("https://example.com:8443/mcp/", None),
        ("https://www.example.com/mcp/", None),
        ("https://example.com@evil.example/", None),
        ("https://user@example.com/", None),
        ("//evil.example/", None),
        ("\\\\evil.example/", "/api/\\\\evil.example/"),
        ("javascript:x", None),
        ("https://[::1", None),
        ("/a b", None),
        ("", None),
        (None, None),
    ],
)
def test_http_client_follows_a_redirect_within_the_origin(location: str | None, target: str | None) -> None:
    assert redirected(SECURE, "POST", "/api/mcp", 307, location) == target


@pytest.mark.parametrize(
    ("method", "status", "followed"),
    [
        ("POST", 307, True),
        ("POST", 308, True),
        ("DELETE", 308, True),
        ("GET", 307, True),
        ("GET", 301, True),
        ("GET", 302, True),
        ("GET", 303, True),
        ("POST", 301, False),
        ("POST", 302, False),
        ("POST", 303, False),
        ("DELETE", 302, False),
        ("GET", 300, False),
        ("GET", 304, False),
        ("GET", 200, False),
        ("POST", 201, False),
    ],
)
def test_redirect_is_followed_only_if_it_preserves_method_and_body(method: str, status: int, followed: bool) -> None:
    assert redirected(PLAIN, method, "/mcp", status, "/other") == ("/other" if followed else None)


async def test_redirected_request_is_resent_unchanged_on_the_same_connection() -> None:
    seen: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            seen.append(request)
            again = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /mcp/\r\nContent-Length: 0\r\n\r\n"
            await visitor.send(again if len(seen) == 1 else OK)

    async with scripted(script) as server, HttpClient(server.url) as client:
        async with client.request("POST", "/mcp", [(b"Authorization", b"Bearer x")], b"{}") as reply:
            assert await reply.read(10) == b"hello"
        assert len(server.visitors) == 1
    assert seen[1] == seen[0].replace(b"/mcp", b"/mcp/")


async def test_redirect_to_another_origin_is_returned_as_the_response() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 307 X\r\nLocation: https://evil.example/\r\nContent-Length: 0\r\n\r\n")

    async with (
        scripted(script) as server,
        HttpClient(server.url) as client,
        client.request("POST", "/mcp") as reply,
    ):
        assert (reply.status, reply.headers["location"]) == (307, "https://evil.example/")


async def test_redirect_loop_stops_at_the_redirect_limit() -> None:
    asked = 0

    async def script(visitor: Visitor) -> None:
        nonlocal asked
        while await visitor.request():
            asked += 1
            await visitor.send(b"HTTP/1.1 308 X\r\nLocation: /mcp\r\nContent-Length: 0\r\n\r\n")

    async with scripted(script) as server, HttpClient(server.url) as client, client.request("POST", "/mcp") as reply:
        assert reply.status == 308
    assert asked == 1 + REDIRECT_LIMIT


async def test_redirect_is_returned_as_the_response_if_following_is_disabled() -> None:
    async def script(visitor: Visitor) -> None:
        while await visitor.request():
            await visitor.send(b"HTTP/1.1 307 Elsewhere\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")

    async with (
        scripted(script) as server,
        HttpClient(server.url, http_proxy=None, follow_redirects=False) as client,
        client.request("GET", "/mcp") as reply,
    ):
        assert (reply.status, reply.headers["location"]) == (307, "/elsewhere")
    assert len(server.visitors) == 1
