"""The OAuth clients of people's real software sign their user in for a server of ours, in both eras.

Each client runs once against each kind of server, in a process of its own, with a user who allows everything. The
authorization server is oidc-provider.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.peers.authorization.conftest import Peers

READ, BOTH = "files:read", "files:read files:write"
MAKES = [
    ("official", "legacy"),
    ("official", "modern"),
    ("fastmcp", "legacy"),
    ("fastmcp", "modern"),
    ("typescript1", "legacy"),
    ("typescript2", "legacy"),
    ("typescript2", "modern"),
]
TYPESCRIPT1 = MAKES[4]


class Seen:
    """What a client saw of our server."""

    def __init__(self, steps: dict[str, dict[str, Any]], url: str) -> None:
        self.steps = steps
        self.url = url

    def whoami(self, step: str) -> tuple[str, str]:
        """The caller as the server has found, and the scopes of the caller."""
        saw = self.steps[step]["saw"]
        return saw["subject"], saw["scopes"]

    def requests(self) -> list[set[str]]:
        """The scopes of all authorization requests, each of which named our server."""
        asked = self.steps["asked for"]["saw"]
        assert {resource for resource, _ in asked} == {self.url}
        return [set(scopes.split()) - {"offline_access"} for _, scopes in asked]


@pytest.fixture(scope="module", params=MAKES, ids="-".join)
def seen(request: pytest.FixtureRequest, peers: Peers) -> Seen:
    url = peers.server("ours", "bearer")
    return Seen(peers.client(*request.param, url), url)


def test_client_of_another_sdk_gets_a_token_after_status_401_from_a_trio_mcp_server(seen: Seen) -> None:
    assert seen.whoami("whoami") == ("alice", READ)
    assert seen.requests()[0] == {READ}


@pytest.mark.parametrize("seen", [make for make in MAKES if make != TYPESCRIPT1], indirect=True, ids="-".join)
def test_client_of_another_sdk_requests_more_scopes_for_a_tool_that_requires_them(seen: Seen) -> None:
    assert seen.whoami("write") == ("alice", BOTH)
    assert seen.whoami("whoami again") == ("alice", BOTH)
    assert seen.requests() == [{READ}, set(BOTH.split())]


@pytest.mark.parametrize("seen", [TYPESCRIPT1], indirect=True, ids="-".join)
def test_typescript_1_client_that_needs_more_scopes_fails_with_403_but_keeps_the_session(seen: Seen) -> None:
    """1.x refreshes its token for a step-up, which cannot add a scope, and gives up then."""
    assert seen.steps["write"]["code"] == 403
    assert seen.whoami("whoami again") == ("alice", READ)
    assert seen.requests() == [{READ}]


@pytest.mark.parametrize("scheme", ["dpop", "dpop-nonce"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_typescript_client_with_a_dpop_key_is_accepted_by_a_trio_mcp_server(
    peers: Peers, era: str, scheme: str
) -> None:
    url = peers.server("ours", scheme)
    seen = Seen(peers.client("typescript2", era, url, "dpop"), url)
    assert seen.whoami("whoami") == ("alice", READ)
    assert seen.whoami("write") == ("alice", BOTH)
    assert seen.steps["token type"]["saw"] == "DPoP"
