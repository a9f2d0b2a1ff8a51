"""Server cards and catalogs as clients read them, from valid and hostile servers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, ScriptedHttp, serving
from tests.serving.http.raw import served

from trio_mcp import Card, Server
from trio_mcp.auth.fetching import Fetch, Fetched, HttpFetcher
from trio_mcp.hosting import DiscoveryFailed, FoundServer, discover, read_card

CARD: dict[str, Any] = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
    "name": "com.example/weather",
    "version": "1.0.2",
    "description": "Weather for places",
    "remotes": [
        {"type": "streamable-http", "url": "https://{region}.example.com/mcp", "variables": {"region": {}}},
        {"type": "sse", "url": "https://example.com/sse"},
        {"type": "streamable-http", "url": "https://example.com/mcp", "supportedProtocolVersions": ["2026-07-28"]},
    ],
}
KIND = "application/mcp-server-card+json"


def entry(**members: Any) -> dict[str, Any]:
    return {"identifier": "urn:air:example.com:mcp:weather", "type": KIND, **members}


@asynccontextmanager
async def answering(*bodies: bytes, status: int = 200, **headers: str) -> AsyncGenerator[ScriptedHttp]:
    """A server that gives one answer after another."""
    left = list(bodies)

    async def answer(got: Got, answer: Answer) -> None:
        await answer.whole(status, left.pop(0) if len(left) > 1 else left[0], **headers)

    async with serving(answer) as server:
        yield server


async def test_client_reads_the_server_card_of_a_server() -> None:
    server = Server("weather", "1.0.2", description="Weather for places")
    card = Card("com.example/weather", url="http://127.0.0.1:1/mcp")
    async with served(server, card=card, catalog=True) as endpoint:
        base = f"http://127.0.0.1:{endpoint.port}"
        (found,) = await discover(base)
        assert found == FoundServer(
            "urn:air:example.com:mcp:weather",
            f"{base}/.well-known/ai-catalog.json",
            url="http://127.0.0.1:1/mcp/server-card",
        )
        read = await read_card(f"{base}/mcp/server-card")
    assert read == card._of(server)
    assert read.endpoint is not None
    assert read.endpoint.url == "http://127.0.0.1:1/mcp"


async def test_client_uses_the_endpoint_of_a_server_card_that_needs_no_values_from_the_user() -> None:
    async with answering(json.dumps(CARD).encode()) as server:
        card = await read_card(server.url)
    assert card.endpoint is not None
    assert card.endpoint.url == "https://example.com/mcp"
    assert card.endpoint.supported_protocol_versions == ["2026-07-28"]
    assert server.got[0].headers["accept"] == KIND


async def test_discovery_accepts_a_catalog_with_server_cards_and_unknown_entries() -> None:
    entries = [
        entry(data=CARD),
        entry(url="https://elsewhere.example/card"),
        entry(url="https://example.com/a", data=CARD),
        entry(),
        entry(url=7),
        entry(data={**CARD, "name": "no name"}),
        entry(data=[]),
        {"type": KIND, "url": "https://example.com/nameless"},
        {"identifier": "urn:air:example.com:agent:a", "type": "application/a2a-agent-card+json", "url": "https://a"},
    ]
    async with answering(json.dumps({"specVersion": "1.0", "entries": entries}).encode()) as server:
        found = await discover(server.url.removesuffix("/mcp"))
    assert server.got[0].target == "/.well-known/ai-catalog.json"
    assert server.got[0].headers["accept"] == "application/ai-catalog+json"
    assert [each.url for each in found] == [None, "https://elsewhere.example/card"]
    assert (await read_card(found[0])).name == "com.example/weather"
    assert len(server.got) == 1


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "no valid server card"),
        (b"null", "no valid server card"),
        (DEEP, "longer than 65536 bytes"),
        (DEEP[:60_000], "nested too deeply|no JSON"),
        (json.dumps({**CARD, "name": 7}).encode(), "name"),
        (json.dumps({**CARD, "name": "\x1b[2J/x"}).encode(), "like com.example/weather"),
        (json.dumps({key: CARD[key] for key in CARD if key != "version"}).encode(), "missing 'version'"),
        (json.dumps({**CARD, "remotes": [7]}).encode(), "remotes"),
        (json.dumps({**CARD, "remotes": [{"type": "streamable-http"}]}).encode(), "missing 'url'"),
        (json.dumps({**CARD, "icons": "\x1b]0;title\x07"}).encode(), "icons"),
        (json.dumps(CARD).encode().ljust(64 * 1024 + 1), "longer than 65536 bytes"),
    ],
)
async def test_malformed_server_card_raises_discovery_failed(body: bytes, complaint: str) -> None:
    async with answering(body) as server:
        with pytest.raises(DiscoveryFailed, match=complaint) as caught:
            await read_card(server.url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "not JSON"),
        (b'{"entries": {}}', "is not a valid catalog of servers"),
        (b'{"entries": [7]}', "is not a valid catalog of servers"),
        (b'{"entries": []}'.ljust(1024 * 1024 + 1), "longer than 1048576 bytes"),
    ],
)
async def test_malformed_server_catalog_raises_discovery_failed(body: bytes, complaint: str) -> None:
    async with answering(body) as server:
        with pytest.raises(DiscoveryFailed, match=complaint):
            await discover(server.url.removesuffix("/mcp"))


async def test_discover_returns_at_most_a_thousand_servers() -> None:
    entries = [entry(url="https://e.example") for _ in range(1100)]
    async with answering(json.dumps({"entries": entries}).encode()) as server:
        assert len(await discover(server.url.removesuffix("/mcp"))) == 1000


async def test_missing_server_catalog_raises_discovery_failed() -> None:
    async with answering(b"nothing", status=404) as server:
        with pytest.raises(DiscoveryFailed, match=r"there is no document at http://127.*: status 404"):
            await discover(server.url.removesuffix("/mcp"))


def leading(place: Callable[[Got], str | None]) -> Any:
    """A server that redirects to where ``place`` says; `None` is the card."""

    async def answer(got: Got, answer: Answer) -> None:
        where = place(got)
        if where is None:
            await answer.json(CARD)
        else:
            await answer.whole(302, location=where)

    return serving(answer)


async def test_server_card_discovery_follows_up_to_three_redirects() -> None:
    steps = {"/mcp": "/a", "/a": "b", "/b": "/c"}
    async with leading(lambda got: steps.get(got.target)) as server:
        assert (await read_card(server.url)).name == "com.example/weather"


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("/mcp", "more than 3 redirects"),
        ("http://10.0.0.7/card", "refusing to fetch"),
        ("file:///etc/passwd", "an HTTP URL"),
        ("https://user:word@example.com", "neither a user"),
        ("http://[", "redirects to an invalid URL|no URL"),
        ("https://example.com/#there", "fragment"),
    ],
)
async def test_server_card_discovery_refuses_redirects_to_unsafe_urls(where: str, complaint: str) -> None:
    async with leading(lambda _: where) as server:
        with pytest.raises(DiscoveryFailed, match=complaint):
            await read_card(server.url)


@pytest.mark.parametrize("url", ["http://example.com/card", "ftp://example.com", "example.com", "https://a@b.example"])
async def test_server_card_url_must_use_https(url: str) -> None:
    with pytest.raises(DiscoveryFailed):
        await read_card(url)


@pytest.mark.parametrize(
    "domain", ["example.com/mcp", "http://example.com", "https://example.com/?q", "", "a b", "\x1b[2J", "x" * 300]
)
async def test_invalid_catalog_domain_raises_discovery_failed(domain: str) -> None:
    with pytest.raises(DiscoveryFailed) as caught:
        await discover(domain)
    assert str(caught.value).isprintable()


async def test_client_refuses_a_plain_http_localhost_url_in_a_remote_catalog() -> None:
    async with answering(json.dumps(CARD).encode()) as server:
        named = FoundServer("urn:x", "https://example.com/.well-known/ai-catalog.json", url=server.url)
        with pytest.raises(DiscoveryFailed, match="refusing to fetch"):
            await read_card(named)
        for url in ("https://10.0.0.7/card", "https://127.0.0.1/card", "https://[::ffff:169.254.169.254]/card"):
            named = FoundServer("urn:x", "https://example.com/.well-known/ai-catalog.json", url=url)
            with pytest.raises(DiscoveryFailed, match="forbid the address"):
                await read_card(named, public_addresses_only=True)
    assert server.connections == 0


OF_THIS_MACHINE = [
    *("127.0.0.1", "127.1", "127.0.0.1.", "2130706433", "0x7f000001", "017700000001", "localhost", "localhost."),
    *("a.localhost", "0.0.0.0", "0", "\u2460" + "27.0.0.1", "\uff11\uff12\uff17.0.0.1", "[::1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::]"),
]


@pytest.mark.parametrize("host", OF_THIS_MACHINE)
@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_discovery_with_public_addresses_only_refuses_localhost_in_every_notation(host: str, scheme: str) -> None:
    async with answering(json.dumps(CARD).encode()) as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        place = f"{scheme}://{host}:{port}"
        for catalog in (f"{place}/.well-known/ai-catalog.json", "https://example.com/.well-known/ai-catalog.json"):
            with pytest.raises(DiscoveryFailed, match="refusing to fetch"):
                await read_card(FoundServer("urn:x", catalog, url=f"{place}/card"), public_addresses_only=True)
        with pytest.raises(DiscoveryFailed, match="refusing to fetch"):
            await read_card(f"{place}/card", public_addresses_only=True)
        for domain in (place, f"{host}:{port}"):
            with pytest.raises(DiscoveryFailed, match="refusing to fetch"):
                await discover(domain, public_addresses_only=True)
    assert server.connections == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254"])
async def test_discovery_with_public_addresses_only_checks_the_resolved_address(address: str) -> None:
    looked_up: list[object] = []

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *_: object) -> object:  # type: ignore[override]
            looked_up.append(host)
            return [(trio.socket.AF_INET, 1, 6, "", (address, port))]

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    async with answering(json.dumps(CARD).encode()) as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        trio.socket.set_custom_hostname_resolver(Resolver())
        with pytest.raises(DiscoveryFailed, match="forbid the address"):
            await discover(f"example.com:{port}", public_addresses_only=True)
        with pytest.raises(DiscoveryFailed, match="forbid the address"):
            await read_card(f"https://example.com:{port}/card", public_addresses_only=True)
    assert looked_up == [b"example.com"] * 2, "each time once: a second answer could be another one"
    assert server.connections == 0


@pytest.mark.parametrize("host", OF_THIS_MACHINE)
async def test_discovery_with_public_addresses_only_refuses_redirects_to_localhost(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def exchange(_: object, request: Fetch, __: object) -> Fetched:
        await trio.lowlevel.checkpoint()
        asked.append(request.url)
        return Fetched(status=302, headers={"location": f"https://{host}/card"}, body=b"")

    monkeypatch.setattr(HttpFetcher, "_exchange", exchange)
    with pytest.raises(DiscoveryFailed, match="refusing to fetch"):
        await read_card("https://example.com/card", public_addresses_only=True)
    assert asked == ["https://example.com/card"]


async def test_discovery_url_that_is_not_a_string_raises_type_error() -> None:
    with pytest.raises(TypeError, match="a URL must be a string"):
        await read_card(7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="a URL must be a string"):
        await discover(b"example.com")  # pyright: ignore[reportArgumentType]
