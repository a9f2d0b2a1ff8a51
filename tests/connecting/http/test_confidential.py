"""Tokens are sent in plain text only to localhost, and requests to localhost bypass proxies."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.connecting.http.authorizing import Handed, guarded
from tests.connecting.http.scripted import Answer, Got, modern, serving, text

from trio_mcp import Address, BadTarget, open_http, open_websocket
from trio_mcp.auth import Bearer, OAuth

PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
TOKEN = {"authorization": "Bearer s3cret"}


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def never(*_: object) -> None:
    pytest.fail("asked")


@pytest.mark.parametrize("way", [{"auth": Bearer("s3cret")}, {"headers": TOKEN}, {}])
@pytest.mark.parametrize("is_given", [True, False])
async def test_server_on_localhost_is_called_without_the_http_proxy(
    way: dict[str, Any], is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    async with (
        serving(modern(as_json)) as server,
        serving(never) as proxy,
    ):
        url, by = server.url.replace("127.0.0.1", "localhost"), proxy.url.removesuffix("/mcp")
        monkeypatch.setenv("http_proxy", by)
        monkeypatch.setenv("all_proxy", by)
        async with open_http(url, **way, **({"http_proxy": by} if is_given else {})) as client:
            assert (await client.call_tool("any")).text == "done"
    assert proxy.got == []


REMOTE = "http://mcp.example.com:8000/mcp?a"


@pytest.mark.parametrize(
    "way",
    [
        {"headers": TOKEN},
        {"headers": {"AUTHORIZATION": "Basic c2VjcmV0"}},
        {"headers": {"DPoP": "x"}},
        {"auth": Bearer("s3cret")},
        {"auth": OAuth()},
        {"auth": Handed(never)},
    ],
)
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_client_refuses_to_send_a_token_to_a_remote_plain_http_url(way: dict[str, Any], scheme: str) -> None:
    url = REMOTE.replace("http", scheme, 1)
    opened: AbstractAsyncContextManager[Any] = (open_http if scheme == "http" else open_websocket)(url, **way)
    words = f"refusing to send a token to {scheme}://mcp.example.com:8000 in plain text: the server needs {scheme}s"
    with pytest.raises(ValueError, match="refusing to send a token") as refused:
        async with opened:
            pytest.fail("opened")
    assert str(refused.value) == words
    with pytest.raises(BadTarget, match=words):
        Address(url, **way)


@pytest.mark.parametrize("url", ["https://mcp.example.com/mcp", "wss://mcp.example.com/", "http://127.0.0.1:1/mcp"])
def test_client_sends_a_token_over_tls_and_to_localhost(url: str) -> None:
    assert Address(url, headers=TOKEN).headers == TOKEN


async def test_client_sends_headers_without_a_token_over_plain_http() -> None:
    assert Address("http://mcp.example.com/mcp", headers={"X-Tenant": "a"}).headers


async def test_protected_server_on_localhost_is_called_over_plain_http() -> None:
    async with (
        serving(guarded(modern(as_json))) as server,
        open_http(server.url, headers={"Authorization": "Bearer good"}) as client,
    ):
        assert (await client.call_tool("any")).text == "done"
