"""OAuth, the whole way: from a refusal to the call, with a small authorization server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from tests.auth.oauth_client.protected_world import World, protected
from tests.connecting.http.scripted import Answer, Got, modern, text

from trio_mcp import Client, open_http
from trio_mcp.auth import AuthorizationError, ClientCredentials, MemoryTokenStorage, OAuth, SignInNeeded
from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed, HttpFetcher


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


SERVED = modern(as_json)


@asynccontextmanager
async def signed_in(*, dpop: bool = False, **behaviour: Any) -> AsyncGenerator[tuple[World, Client]]:
    """A client whose user says yes to everything."""
    async with protected(SERVED, **behaviour) as world, AsyncExitStack() as stack:
        auth = OAuth(on_visit=world.visit, dpop=dpop)
        yield world, await stack.enter_async_context(open_http(world.url, auth=auth))


async def test_user_signs_in_if_the_server_requires_a_token() -> None:
    async with signed_in() as (world, client):
        assert (await client.call_tool("any")).text == "done"
    assert world.calls == ["server/discover", "tools/call"]
    assert (len(world.authorizations), world.registrations) == (1, 1)


async def test_client_with_a_reused_oauth_object_needs_no_second_sign_in() -> None:
    async with protected(SERVED) as world:
        auth = OAuth(on_visit=world.visit)
        for _ in range(2):
            async with open_http(world.url, auth=auth) as client:
                await client.call_tool("any")
    assert len(world.authorizations) == 1


async def test_client_uses_the_tokens_that_an_earlier_client_stored() -> None:
    storage = MemoryTokenStorage()
    async with protected(SERVED) as world:
        for _ in range(2):
            async with open_http(world.url, auth=OAuth(on_visit=world.visit, storage=storage)) as client:
                await client.call_tool("any")
    assert len(world.authorizations) == 1


async def test_fifty_concurrent_calls_with_an_expired_token_cause_one_token_refresh() -> None:
    async with signed_in() as (world, client):
        world.expire()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client.call_tool, "any")
    assert world.calls.count("tools/call") == 50
    assert (len(world.refreshes), len(world.authorizations)) == (1, 1)


async def test_fifty_concurrent_calls_without_a_token_sign_the_user_in_once() -> None:
    async with protected(SERVED) as world:
        auth = OAuth(on_visit=world.visit, refresh=False)
        async with open_http(world.url, auth=auth) as client:
            world.expire()
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(client.call_tool, "any")
    assert len(world.authorizations) == 2


async def test_access_token_is_refreshed_before_it_expires() -> None:
    async with signed_in(expires_in=0) as (world, client):
        await client.call_tool("any")
    assert len(world.refreshes) >= 1
    assert len(world.authorizations) == 1


async def test_client_keeps_its_valid_access_token_if_a_token_refresh_before_expiry_is_unanswered() -> None:
    async with signed_in(expires_in=0, refuse_refresh="cut") as (world, client):
        for _ in range(5):
            await client.call_tool("any")
    assert len(world.refreshes) == 1, "not tried again at once"
    assert len(world.authorizations) == 1


async def test_client_keeps_its_valid_access_token_if_a_token_refresh_before_expiry_is_rejected() -> None:
    async with signed_in(expires_in=0, refuse_refresh="invalid_grant") as (world, client):
        for _ in range(5):
            await client.call_tool("any")
    assert len(world.refreshes) == 1
    assert len(world.authorizations) == 1


async def test_user_signs_in_again_after_a_rejected_refresh() -> None:
    async with signed_in() as (world, client):
        world.expire()
        world.refresh_tokens.clear()
        assert (await client.call_tool("any")).text == "done"
    assert (len(world.refreshes), len(world.authorizations)) == (1, 2)


@pytest.mark.parametrize(("error", "registrations"), [("invalid_client", 2), ("invalid_grant", 1)])
async def test_client_unknown_to_the_authorization_server_registers_again(error: str, registrations: int) -> None:
    async with signed_in() as (world, client):
        world.expire()
        world.refuse_refresh = error
        assert (await client.call_tool("any")).text == "done"
    assert (world.registrations, len(world.authorizations)) == (registrations, 2)


async def test_client_keeps_the_refresh_token_if_a_token_refresh_is_unanswered() -> None:
    async with signed_in() as (world, client):
        world.expire()
        world.refuse_refresh = "cut"
        with pytest.raises(AuthorizationError, match="endpoint failed"):
            await client.call_tool("any")
        world.refuse_refresh = None
        assert (await client.call_tool("any")).text == "done"
    assert len(world.authorizations) == 1


async def test_client_that_needs_more_scopes_requests_the_union_of_old_and_new_scopes() -> None:
    async with signed_in(needed={"a": "read", "b": "write"}) as (world, client):
        assert (await client.call_tool("a")).text == "done"
        assert (await client.call_tool("b")).text == "done"
    assert [asked.get("scope") for asked in world.authorizations] == [None, "read", "read write"]


async def test_client_requests_a_scope_only_once_if_the_authorization_server_does_not_grant_it() -> None:
    async with protected(SERVED, needed={"a": "admin"}) as world:

        async def grant_little(form: dict[str, str]) -> None:
            if "code" in form:
                form["code"] = form["code"].replace("admin", "guest")

        world.before_token = grant_little
        async with open_http(world.url, auth=OAuth(on_visit=world.visit)) as client:
            with pytest.raises(AuthorizationError, match="the server refuses even the client's new token") as caught:
                await client.call_tool("a")
    assert caught.value.code == "insufficient_scope"
    assert len(world.authorizations) == 2


async def test_call_raises_authorization_error_if_the_server_rejects_a_newly_issued_token() -> None:
    async with protected(SERVED) as world:

        async def then(got: Got, answer: Answer) -> None:
            await answer.whole(401)

        world.then = then
        with pytest.raises(AuthorizationError, match="the server refuses even the client's new token"):
            async with open_http(world.url, auth=OAuth(on_visit=world.visit)):
                pytest.fail("let in")
    assert len(world.authorizations) == 1


async def test_user_signs_in_again_if_the_server_rejects_a_refreshed_token() -> None:
    async with signed_in() as (world, client):
        world.expire()

        refused = world.then

        async def then(got: Got, answer: Answer) -> None:
            if "access-2-" in got.headers["authorization"]:
                await answer.whole(401)
            else:
                await refused(got, answer)

        world.then = then
        assert (await client.call_tool("any")).text == "done"
    assert (len(world.refreshes), len(world.authorizations)) == (1, 2)


async def test_call_fails_if_the_user_denies_the_sign_in() -> None:
    async def no(url: str) -> str:
        asked = dict(pair.split("=") for pair in url.partition("?")[2].split("&"))
        return f"http://127.0.0.1/?error=access_denied&state={asked['state']}"

    async with protected(SERVED) as world:
        with pytest.raises(AuthorizationError) as caught:
            async with open_http(world.url, auth=OAuth(on_visit=no)):
                pytest.fail("let in")
    assert caught.value.code == "access_denied"


async def test_client_with_the_dpop_option_can_call_a_tool_and_refresh_its_tokens() -> None:
    async with signed_in(dpop=True) as (world, client):
        await client.call_tool("any")
        world.expire()
        await client.call_tool("any")
    assert len(world.refreshes) == 1


async def test_client_sends_the_dpop_nonce_that_the_server_requires() -> None:
    async with signed_in(dpop_nonce="n-1", dpop=True) as (world, client):
        await client.call_tool("any")
        world.dpop_nonce = "n-2"
        await client.call_tool("any")
    assert len(world.authorizations) == 1


async def test_client_with_client_credentials_gets_and_renews_tokens_without_a_user() -> None:
    auth = ClientCredentials("me", client_secret="s3cret-1")
    async with protected(SERVED) as world, open_http(world.url, auth=auth) as client:
        await client.call_tool("any")
        world.expire()
        await client.call_tool("any")
    assert [form["grant_type"] for form in world.token_requests] == ["client_credentials"] * 2


@pytest.mark.parametrize("dpop", [False, True])
async def test_logs_and_errors_of_an_oauth_client_contain_no_secrets(
    dpop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    words = list[str]()
    async with protected(SERVED, needed={"b": "write"}) as world:
        auth = OAuth(on_visit=world.visit, client_id="me", client_secret="my-s3cret", dpop=dpop)
        async with open_http(world.url, auth=auth) as client:
            await client.call_tool("b")
            world.expire()
            await client.call_tool("any")
            world.expire()
            world.refuse_refresh = "cut"
            with pytest.raises(AuthorizationError) as caught:
                await client.call_tool("any")
            words += [str(caught.value), repr(caught.value)]
            world.refuse_refresh = "invalid_grant"
            await client.call_tool("any")
        words += [repr(auth), repr(auth.storage), repr(client)]
        stored = await auth.storage.load(world.url)
        assert stored is not None
        words.append(repr(stored))
        if dpop:
            key = stored.issuers[world.origin].proof_key
            assert key is not None
            world.secrets.append(key["d"])
    everything = "\n".join([caplog.text, *words])
    assert len(world.secrets) > 10
    assert [secret for secret in [*world.secrets, "my-s3cret"] if secret in everything] == []


async def test_oauth_client_with_asks_user_false_only_refreshes_stored_tokens() -> None:
    storage = MemoryTokenStorage()
    async with protected(SERVED) as world:
        quiet = OAuth(on_visit=world.visit, storage=storage, asks_user=False)
        with pytest.raises(SignInNeeded):
            async with open_http(world.url, auth=quiet):
                pytest.fail("opened without a token")
        assert (world.authorizations, world.registrations) == ([], 0)
        async with open_http(world.url, auth=OAuth(on_visit=world.visit, storage=storage)):
            pass
        world.expire()
        async with open_http(world.url, auth=quiet) as client:
            assert (await client.call_tool("any")).text == "done"
        assert (len(world.authorizations), len(world.refreshes)) == (1, 1)


@pytest.mark.parametrize("proxy", [True, None, "http://proxy.example:3128"])
async def test_authorization_requests_use_the_configured_proxy(
    monkeypatch: pytest.MonkeyPatch, proxy: Literal[True] | str | None
) -> None:
    asked = list[HttpFetcher]()

    async def fetch(fetcher: HttpFetcher, request: Fetch) -> Fetched:
        asked.append(fetcher)
        raise FetchFailed("nobody is there")

    monkeypatch.setattr(HttpFetcher, "fetch", fetch)
    for auth in (OAuth(http_proxy=proxy), ClientCredentials("me", client_secret="s3cret-1", http_proxy=proxy)):
        async with protected(SERVED) as world:
            with pytest.raises(AuthorizationError, match="nobody is there"):
                async with open_http(world.url, auth=auth):
                    pytest.fail("let in")
    assert {fetcher.http_proxy for fetcher in asked} == {proxy}
