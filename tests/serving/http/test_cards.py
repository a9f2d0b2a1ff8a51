"""The card of a server and the catalog that names the card: public documents beside the endpoint."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.published_schemas import CARD as CARD_SCHEMA
from tests.published_schemas import faults
from tests.serving.http.memory_listener import ListenedEndpoint, listening
from tests.serving.http.protection import Tokens, protected
from tests.serving.http.raw import Answer
from tests.serving.http.test_asgi import asking, good

from trio_mcp import Card, Server, http_app, proxy, serve_http
from trio_mcp.types import Icon, SourceRepository

CARD, CATALOG = "/mcp/server-card", "/.well-known/ai-catalog.json"
NAMED = Card("com.example/weather", url="https://example.com/mcp")
FOREIGN = {"Origin": "https://elsewhere.example"}


def weather(**options: Any) -> Server:
    server = Server("weather", "1.0.2", **{"title": "Weather", "description": "Weather for places", **options})

    @server.tool
    async def secret_tool() -> str:
        return "secret"

    return server


async def ask(endpoint: ListenedEndpoint, path: str, method: str = "GET", **headers: str | None) -> Answer:
    connection = await endpoint.connect()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    await connection.send(method, {"Host": "127.0.0.1", **named}, path=path)
    return await connection.answer()


@pytest.fixture
async def endpoint() -> AsyncGenerator[ListenedEndpoint]:
    async with listening(weather(), card=NAMED, catalog=True, auth=protected(Tokens())) as one:
        yield one


async def test_server_card_contains_the_server_information_and_matches_the_schema(endpoint: ListenedEndpoint) -> None:
    answer = await ask(endpoint, CARD)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/mcp-server-card+json")
    assert answer.json == {
        "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
        "name": "com.example/weather",
        "version": "1.0.2",
        "description": "Weather for places",
        "title": "Weather",
        "remotes": [
            {
                "type": "streamable-http",
                "url": "https://example.com/mcp",
                "supportedProtocolVersions": ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"],
            }
        ],
    }
    assert faults(CARD_SCHEMA, answer.json) == []


async def test_full_server_card_matches_the_schema_and_lists_no_tools() -> None:
    server = weather(website_url="https://example.com", icons=[Icon("https://example.com/i.png", sizes=["48x48"])])
    source = SourceRepository("https://github.com/example/weather", "github", subfolder="src")
    card = Card("com.example/weather", url="https://example.com/mcp", title="Other", repository=source)
    async with listening(server, card=card) as endpoint:
        answer = await ask(endpoint, CARD)
    assert faults(CARD_SCHEMA, answer.json) == []
    told = answer.json
    assert (told["title"], told["websiteUrl"], told["icons"][0]["sizes"]) == ("Other", "https://example.com", ["48x48"])
    assert told["repository"]["subfolder"] == "src"
    assert b"secret" not in answer.body
    assert {"capabilities", "extensions", "tools", "packages", "instructions", "_meta"}.isdisjoint(told)


async def test_discovery_catalog_lists_the_server_card(endpoint: ListenedEndpoint) -> None:
    answer = await ask(endpoint, CATALOG)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/ai-catalog+json")
    assert answer.json == {
        "specVersion": "1.0",
        "entries": [
            {
                "identifier": "urn:air:example.com:mcp:weather",
                "type": "application/mcp-server-card+json",
                "url": "https://example.com/mcp/server-card",
            }
        ],
    }


@pytest.mark.parametrize("path", [CARD, CATALOG])
async def test_server_card_is_served_to_any_origin_with_any_accept_header(
    endpoint: ListenedEndpoint, path: str
) -> None:
    assert (await ask(endpoint, "/mcp", "POST")).status == 401
    for headers in ({}, FOREIGN, {"Accept": "text/html"}, {"Accept": "image/*;q=0"}):
        answer = await ask(endpoint, path, **headers)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "GET"
        assert answer.headers["access-control-allow-headers"] == "Content-Type, If-None-Match"
        assert answer.headers["access-control-expose-headers"] == "ETag"
        assert answer.headers["cache-control"] == "public, max-age=3600"


@pytest.mark.parametrize("path", [CARD, CATALOG])
async def test_server_card_request_for_another_host_is_rejected(endpoint: ListenedEndpoint, path: str) -> None:
    assert (await ask(endpoint, path, Host="rebound.example")).status == 403


async def test_server_card_request_with_a_matching_etag_gets_status_304(endpoint: ListenedEndpoint) -> None:
    tag = (await ask(endpoint, CARD)).headers["etag"]
    assert (await ask(endpoint, CARD)).headers["etag"] == tag != (await ask(endpoint, CATALOG)).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await ask(endpoint, CARD, If_None_Match=known)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in answer.headers
    for unknown in ('"other"', tag.strip('"'), f'"{tag.strip(chr(34))}x"'):
        assert (await ask(endpoint, CARD, If_None_Match=unknown)).status == 200


async def test_server_card_rejects_methods_other_than_get_and_head(endpoint: ListenedEndpoint) -> None:
    assert (await ask(endpoint, CARD, "HEAD")).body == b""
    assert (await ask(endpoint, CARD, "HEAD")).headers["content-type"] == "application/mcp-server-card+json"
    preflight = await ask(endpoint, CARD, "OPTIONS", **FOREIGN)
    assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (204, "Content-Type, If-None-Match")
    refused = await ask(endpoint, CARD, "DELETE")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


async def test_server_card_paths_get_status_404_without_a_card() -> None:
    async with listening(weather()) as endpoint:
        assert [(await ask(endpoint, path)).status for path in (CARD, CATALOG)] == [404, 404]
    async with listening(weather(), card=NAMED) as endpoint:
        assert [(await ask(endpoint, path)).status for path in (CARD, CATALOG)] == [200, 404]


@pytest.mark.parametrize(
    ("path", "place"), [("/a/b/", "/a/b/server-card"), ("/", "/server-card"), ("", "/server-card")]
)
async def test_server_card_path_follows_the_endpoint_path(path: str, place: str) -> None:
    async with listening(weather(), card=NAMED, path=path) as endpoint:
        assert (await ask(endpoint, place)).status == 200


async def test_proxy_has_its_own_server_card() -> None:
    behind = proxy(weather())
    with pytest.raises(ValueError, match="a server card needs a version"):
        await serve_http(behind, card=NAMED)
    card = Card("com.example/front", url="https://example.com/mcp", version="2.0", description="In front")
    async with listening(behind, card=card) as endpoint:
        told = (await ask(endpoint, CARD)).json
    assert (told["name"], told["version"], told["description"]) == ("com.example/front", "2.0", "In front")
    assert "title" not in told


async def test_asgi_app_serves_the_server_card_and_the_discovery_catalog() -> None:
    async with asking(weather(), card=NAMED, catalog=True) as ask:
        for path, kind in ((CARD, "mcp-server-card"), (CATALOG, "ai-catalog")):
            exchange = ask("GET", path=path, headers=good({"Origin": "https://elsewhere.example"}))
            await exchange.send(b"")
            answer = await exchange.answer()
            assert (answer.status, answer.headers["content-type"]) == (200, f"application/{kind}+json")
            exchange = ask("GET", path=path, headers=good({"If-None-Match": answer.headers["etag"]}))
            await exchange.send(b"")
            answer = await exchange.answer()
            assert (answer.status, "content-length" in answer.headers) == (304, False)


@pytest.mark.parametrize(("host", "status"), [(b"mcp.example.com", 200), (b"rebound.example", 403)])
async def test_asgi_app_of_the_discovery_catalog_can_be_mounted_at_the_host_root(host: bytes, status: int) -> None:
    mcp = http_app(weather(), allowed_origins=[], allowed_hosts=["mcp.example.com"], card=NAMED, catalog=True)
    assert mcp.catalog.paths == (CATALOG,)
    assert http_app(weather(), allowed_origins=[], allowed_hosts=["mcp.example.com"]).catalog.paths == ()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("there is no body")

    await mcp.catalog({"type": "http", "method": "GET", "headers": [(b"host", host)]}, receive, send)
    assert sent[0]["status"] == status
    assert (b"urn:air" in sent[1]["body"]) == (status == 200)


async def test_route_with_the_path_of_the_server_card_raises() -> None:
    async def page(request: Any) -> str:
        return "page"

    with pytest.raises(ValueError, match="must not contain /mcp/server-card"):
        await serve_http(weather(), card=NAMED, routes={CARD: page})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "weather"}, "like com.example/weather"),
        ({"name": "a/b/c"}, "like com.example/weather"),
        ({"name": "com.example/" + "w" * 200}, "3 to 200"),
        ({"name": "com.example/weather\n"}, "like com.example/weather"),
        ({"version": "^1.2.3"}, "one exact version"),
        ({"version": ">=1"}, "one exact version"),
        ({"version": "1.x"}, "one exact version"),
        ({"version": "1.*"}, "one exact version"),
        ({"version": "latest"}, "one exact version"),
        ({"version": ""}, "one exact version"),
        ({"description": ""}, "this one is empty"),
        ({"description": "d" * 101}, "1 to 100 characters, but this one has 101"),
        ({"title": "t" * 101}, "the title of a server"),
        ({"url": "http://example.com/mcp"}, "must use https"),
        ({"url": "ws://example.com/mcp"}, "an HTTP URL"),
        ({"url": "https://user@example.com/mcp"}, "neither a user"),
        ({"url": "https://10.0.0.7/mcp"}, "have the private address"),
        ({"url": "https://[fd00::7]/mcp"}, "have the private address"),
        ({"url": "https://weather/mcp"}, "have the private address"),
        ({"url": "https://weather.internal/mcp"}, "have the private address"),
    ],
)
def test_invalid_server_card_values_raise_at_creation(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Card(**{"name": "com.example/weather", "url": "https://example.com/mcp", **options})


@pytest.mark.parametrize("version", ["1.0.2", "2.1.0-alpha", "1.0.x-beta", "2026-07-28", "1.0.0+build.7"])
def test_server_card_accepts_a_version_that_is_not_a_range(version: str) -> None:
    assert Card("com.example/weather", url="http://127.0.0.1:8000/mcp", version=version).version == version


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"description": None}, "a server card needs a description: write Server"),
        ({"description": "d" * 101}, "1 to 100"),
        ({"title": "t" * 101}, "the title"),
        ({"icons": [Icon("data:image/png;base64," + "A" * 70_000)]}, "clients read at most 65536"),
    ],
)
async def test_server_start_raises_if_the_server_information_does_not_fit_the_server_card(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        await serve_http(weather(**options), card=NAMED)
    with pytest.raises(ValueError, match=complaint):
        http_app(weather(**options), allowed_origins=[], allowed_hosts=["mcp.example.com"], card=NAMED)


async def test_discovery_catalog_without_a_server_card_raises() -> None:
    with pytest.raises(ValueError, match="catalog=True needs a server card"):
        await serve_http(weather(), catalog=True)


async def test_server_name_that_differs_from_the_server_card_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(Server("rain", description="Rain"), card=NAMED):
        assert "the card says com.example/weather, but clients will see the server name 'rain'" in caplog.text
