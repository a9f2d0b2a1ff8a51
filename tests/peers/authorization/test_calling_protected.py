"""Our client gets tokens for protected servers of people's real software, in both eras.

The authorization server is oidc-provider, at which the user allows everything; one server of fastmcp is its own, and
one stands before oidc-provider.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from examples.authorization.provider import press
from tests.authorization_server.raw import RawClient
from tests.patience import PATIENCE
from tests.peers.authorization.conftest import ROBOT, Peers

from trio_mcp import Client, open_http
from trio_mcp.auth import AuthorizationError, Bearer, ClientCredentials, MemoryTokenStorage, OAuth
from trio_mcp.auth.storage.records import StoredAuthorization
from trio_mcp.transports.http_client.client import HttpClient

READ, BOTH = "files:read", "files:read files:write"
ALICE = {"subject": "alice", "scopes": READ}
SERVERS = ["official", "fastmcp", "typescript"]
both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])
all_servers = pytest.mark.parametrize("make", SERVERS)


class User:
    """A user with a browser, who allows everything."""

    def __init__(self) -> None:
        self.visits = 0

    async def visit(self, url: str) -> None:
        self.visits += 1
        await press(url)


async def whoami(client: Client, tool: str = "whoami") -> Any:
    return (await client.call_tool(tool)).structured_content


@both_eras
@all_servers
async def test_oauth_client_signs_the_user_in_once_after_status_401(peers: Peers, make: str, era: Any) -> None:
    user = User()
    with trio.fail_after(PATIENCE):
        async with open_http(peers.server(make), era=era, auth=OAuth(on_visit=user.visit)) as client:
            assert await whoami(client) == ALICE
            assert await whoami(client) == ALICE
    assert user.visits == 1


@both_eras
async def test_oauth_client_requests_more_scopes_for_a_tool_that_requires_them(peers: Peers, era: Any) -> None:
    """The servers of Python have the same scopes for all tools."""
    user = User()
    with trio.fail_after(PATIENCE):
        async with open_http(peers.server("typescript"), era=era, auth=OAuth(on_visit=user.visit)) as client:
            assert await whoami(client) == ALICE
            assert set((await whoami(client, "write"))["scopes"].split()) == set(BOTH.split())
            assert set((await whoami(client))["scopes"].split()) == set(BOTH.split())
    assert user.visits == 2


@pytest.mark.parametrize("make", [*SERVERS, "fastmcp_proxying"])
async def test_expired_access_token_is_refreshed_without_the_user(peers: Peers, make: str) -> None:
    user, storage, url = User(), MemoryTokenStorage(), peers.server(make)
    auth = OAuth(on_visit=user.visit, storage=storage)
    with trio.fail_after(PATIENCE):
        async with open_http(url, auth=auth):
            pass
        first = await storage.load(url)
        assert first is not None
        assert first.tokens is not None
        await storage.save(url, over(first))
        async with open_http(url, auth=auth) as client:
            assert await whoami(client) == ALICE
    second = await storage.load(url)
    assert second is not None
    assert second.tokens is not None
    assert second.tokens.access_token != first.tokens.access_token
    assert user.visits == 1


def over(stored: StoredAuthorization) -> StoredAuthorization:
    """The same, with tokens that ended long ago."""
    ((issuer, record),) = stored.issuers.items()
    assert record.tokens is not None
    return stored._with_record(issuer, attrs.evolve(record, tokens=attrs.evolve(record.tokens, expires_at=1.0)))


@all_servers
async def test_client_with_client_credentials_calls_a_tool_as_its_own_principal(peers: Peers, make: str) -> None:
    auth = ClientCredentials(client_id=ROBOT["client_id"], client_secret=ROBOT["client_secret"])
    with trio.fail_after(PATIENCE):
        async with open_http(peers.server(make), auth=auth) as client:
            assert await whoami(client) == {"subject": "robot", "scopes": READ}


@all_servers
async def test_token_for_another_resource_raises_authorization_error_with_status_401(peers: Peers, make: str) -> None:
    with trio.fail_after(PATIENCE):
        async with RawClient.registered(peers.issuer) as raw:
            tokens = await raw.tokens("http://127.0.0.1:1/mcp", READ)
        with pytest.raises(AuthorizationError, match="status 401"):
            async with open_http(peers.server(make), auth=Bearer(tokens["access_token"])):
                pass


@both_eras
async def test_oauth_client_signs_in_at_fastmcp_as_authorization_server(peers: Peers, era: Any) -> None:
    """Its issuer has a slash at the end, and its user need not even look."""

    async def look(url: str) -> str:
        async with (
            HttpClient(url, http_proxy=None, follow_redirects=False) as http,
            http.request("GET", http.target, [], b"") as answer,
        ):
            return answer.headers["location"]

    with trio.fail_after(PATIENCE):
        async with open_http(peers.server("fastmcp_issuing"), era=era, auth=OAuth(on_visit=look)) as client:
            assert await whoami(client) == {"scopes": READ}


@both_eras
async def test_oauth_client_signs_in_through_the_oauth_proxy_of_fastmcp(peers: Peers, era: Any) -> None:
    user = User()
    with trio.fail_after(PATIENCE):
        async with open_http(peers.server("fastmcp_proxying"), era=era, auth=OAuth(on_visit=user.visit)) as client:
            assert await whoami(client) == ALICE
