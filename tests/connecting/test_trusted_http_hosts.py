"""Tokens over plain HTTP: only to hosts of a private network that the user has named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.auth.test_fetching import named
from tests.transports.http_client.scripted import Visitor, answering, scripted

from trio_mcp import Address, ConnectionLost, HTTPError, Server, open_http, serve_http
from trio_mcp.auth import AuthorizationError, Bearer, ClientCredentials
from trio_mcp.connecting.credentials import is_confidential
from trio_mcp.hosting import MemberDescription, open_group


@pytest.mark.parametrize(
    ("url", "may_be_sent"),
    [
        ("http://mcp:8000/mcp", True),
        ("HTTP://MCP/mcp", True),
        ("http://10.0.0.5/mcp", True),
        ("http://app.localhost/mcp", True),
        ("ws://app.localhost/mcp", True),
        ("ws://mcp:8000/mcp", False),
        ("http://mcp.evil.example/mcp", False),
        ("http://evil.mcp/mcp", False),
        ("http://mcp@evil.example/mcp", False),
        ("http://10.0.0.51/mcp", False),
    ],
)
def test_client_sends_a_token_over_plain_http_only_to_trusted_hosts_and_localhost(url: str, may_be_sent: bool) -> None:
    assert is_confidential(url, frozenset(("mcp", "10.0.0.5"))) == may_be_sent


@pytest.mark.parametrize("name", ["http://mcp", "mcp:80", "mcp/", "", "*", "a b", "user@mcp"])
@pytest.mark.parametrize("make", [lambda hosts: Bearer("t", trusted_http_hosts=hosts), lambda hosts: client(hosts)])
def test_invalid_trusted_http_host_raises_value_error(make: Callable[[list[str]], object], name: str) -> None:
    with pytest.raises(ValueError, match="write a name or an address"):
        make([name])


def client(hosts: list[str]) -> ClientCredentials:
    return ClientCredentials("app", client_secret="s", trusted_http_hosts=hosts)


def test_trusted_http_hosts_given_as_a_string_raise_type_error() -> None:
    with pytest.raises(TypeError, match="must be a list of names"):
        Bearer("t", trusted_http_hosts="mcp")


async def test_request_with_a_bearer_token_to_a_trusted_http_host_bypasses_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named("127.0.0.1")
    seen: list[str | None] = []
    server = Server("inside")

    @server.tool
    def greet() -> str:
        return "hello"

    async with scripted(answering(b"")) as proxy, trio.open_nursery() as nursery:
        monkeypatch.setenv("http_proxy", proxy.url)
        listeners = await nursery.start(_serve, server)
        port = listeners[0].socket.getsockname()[1]
        auth = Bearer("secret", trusted_http_hosts=["mcp"])
        see: Any = lambda request: seen.append(request.headers.get("Authorization"))  # noqa: E731
        async with open_http(f"http://mcp:{port}/mcp", auth=auth, on_request=see) as opened:
            assert (await opened.call_tool("greet")).text == "hello"
        with pytest.raises(ValueError, match="refusing to send a token to http://other"):
            async with open_http(f"http://other:{port}/mcp", auth=auth):
                pass
        nursery.cancel_scope.cancel(reason="the test is over")
    assert set(seen) == {"Bearer secret"}
    assert proxy.visitors == []


async def test_server_of_a_group_at_a_trusted_http_host_gets_its_token() -> None:
    named("127.0.0.1")
    seen: list[str | None] = []
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(_serve, Server("inside"))
        url = f"http://mcp:{listeners[0].socket.getsockname()[1]}/mcp"
        see: Any = lambda request: seen.append(request.headers.get("Authorization"))  # noqa: E731
        address = Address(url, auth=Bearer("secret", trusted_http_hosts=["mcp"]), on_request=see)
        async with open_group({"inside": MemberDescription(address)}) as group:
            await group.settled()
            assert group.statuses["inside"].error is None
        nursery.cancel_scope.cancel(reason="the test is over")
    assert set(seen) == {"Bearer secret"}


async def _serve(server: Server, *, task_status: Any) -> None:
    await serve_http(server, port=0, allowed_origins=[], allowed_hosts=["mcp"], task_status=task_status)


async def test_token_for_a_trusted_http_host_is_not_sent_to_a_public_address() -> None:
    named("8.8.8.8")
    with pytest.raises(ConnectionLost, match=r"forbid the address 8\.8\.8\.8"):
        async with open_http("http://mcp:8000/mcp", auth=Bearer("secret", trusted_http_hosts=["mcp"])):
            pass


async def test_client_gets_its_token_from_a_trusted_http_authorization_server() -> None:
    named("127.0.0.1")
    granted: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            mcp, idp = f"http://mcp:{server.port}", f"http://idp:{server.port}"
            head = request.partition(b"\r\n\r\n")[0]
            if b"oauth-protected-resource" in head:
                await visitor.send(_json({"resource": f"{mcp}/mcp", "authorization_servers": [idp]}))
            elif b"oauth-authorization-server" in head:
                places = {"authorization_endpoint": f"{idp}/authorize", "token_endpoint": f"{idp}/token"}
                await visitor.send(_json({"issuer": idp, "code_challenge_methods_supported": ["S256"], **places}))
            elif head.startswith(b"POST /token"):
                granted.append(request)
                await visitor.send(_json({"access_token": "good", "token_type": "Bearer"}))
            elif b"Authorization: Bearer good" in head:
                await visitor.send(b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")
            else:
                challenge = f'Bearer resource_metadata="{mcp}/.well-known/oauth-protected-resource/mcp"'
                answer = f"HTTP/1.1 401 No\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 0\r\n\r\n"
                await visitor.send(answer.encode())

    async with scripted(script) as server:
        with pytest.raises(HTTPError, match="418"):
            async with open_http(f"http://mcp:{server.port}/mcp", auth=client(["mcp", "idp"]), era="modern"):
                pass
        assert len(granted) == 1
        with pytest.raises(AuthorizationError, match="only https is allowed"):
            async with open_http(f"http://mcp:{server.port}/mcp", auth=client(["mcp"]), era="modern"):
                pass
        assert len(granted) == 1


def _json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
