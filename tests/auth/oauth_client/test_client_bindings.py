"""The secret of a client is shown to one authorization server alone, whatever servers name (2026-07-28 authorization,
Authorization Server Binding)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from joserfc.jwk import ECKey
from tests.auth.oauth_client.protected_world import World, protected
from tests.connecting.http.scripted import Answer, Got, modern, text

from trio_mcp import open_http
from trio_mcp.auth import (
    AuthorizationError,
    ClientCredentials,
    EnterpriseManaged,
    FileTokenStorage,
    MemoryTokenStorage,
    OAuth,
    PreregisteredClient,
)
from trio_mcp.auth.fetching import HttpFetcher, UrlRules
from trio_mcp.auth.oauth_client.authorization_code import sign_out
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization, Tokens, TokenStorage

SECRET = "h1dden"
KEY = ECKey.generate_key("P-256").as_dict(private=True)


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


SERVED = modern(as_json)


def user(**options: Any) -> OAuth:
    return OAuth(client_id="me", client_secret=SECRET, **options)


def robot(**options: Any) -> ClientCredentials:
    return ClientCredentials("me", client_secret=SECRET, **options)


def signer(**options: Any) -> ClientCredentials:
    return ClientCredentials("me", private_key=KEY, auth_method="private_key_jwt", **options)


async def called(world: World, auth: Any) -> None:
    async with open_http(world.url, auth=auth) as client:
        await client.call_tool("any")


def files_in(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return found


def saw_nothing(world: World) -> bool:
    return not world.token_requests and not world.authorizations and not world.registrations


class AnyUser:
    """Signs in at whichever of the worlds the browser is sent to."""

    def __init__(self, *worlds: World) -> None:
        self.worlds = worlds

    async def visit(self, url: str) -> str:
        (world,) = [world for world in self.worlds if url.startswith(world.origin)]
        return await world.visit(url)


CLIENTS: list[Callable[..., Any]] = [user, robot, signer]


@pytest.mark.parametrize("made", CLIENTS)
async def test_client_secret_that_one_authorization_server_received_is_never_sent_to_another(
    made: Callable[..., Any],
) -> None:
    async with protected(SERVED) as first, protected(SERVED) as second:
        more = {"on_visit": AnyUser(first, second).visit} if made is user else {}
        auth = made(**more)
        await called(first, auth)
        with pytest.raises(AuthorizationError) as refused:
            await called(second, auth)
        assert f"belong to {first.origin!r}, but the server uses {second.origin!r}" in refused.value.reason
        assert saw_nothing(second)
        await called(first, auth)


@pytest.mark.parametrize("made", CLIENTS)
async def test_processes_with_shared_token_storage_send_a_client_secret_to_only_one_authorization_server(
    made: Callable[..., Any], tmp_path: Path
) -> None:
    async with protected(SERVED) as first, protected(SERVED) as second:
        more = {"on_visit": AnyUser(first, second).visit} if made is user else {}
        await called(first, made(storage=FileTokenStorage(tmp_path), **more))
        storage = FileTokenStorage(tmp_path)
        with pytest.raises(AuthorizationError, match="use a separate client, with its own issuer="):
            await called(second, made(storage=storage, **more))
        assert saw_nothing(second)
        assert await storage.server_urls() == [first.url]
    assert not [path for path in files_in(tmp_path) if SECRET in path.read_text()]


async def test_client_secret_is_sent_to_only_one_authorization_server_by_concurrent_clients() -> None:
    async with protected(SERVED) as first, protected(SERVED) as second:
        auth, failures = robot(), list[str]()

        async def call(world: World) -> None:
            try:
                await called(world, auth)
            except AuthorizationError as error:
                failures.append(error.reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, first)
            nursery.start_soon(call, second)
        assert len(failures) == 1
        assert saw_nothing(first) != saw_nothing(second)


async def test_client_secret_is_sent_only_to_the_configured_issuer() -> None:
    async with protected(SERVED) as first, protected(SERVED) as second:
        auth = robot(issuer=second.origin)
        with pytest.raises(AuthorizationError, match="the credentials of this client belong to"):
            await called(first, auth)
        assert saw_nothing(first)
        await called(second, auth)


async def test_clients_with_one_storage_can_send_different_client_secrets_to_different_issuers() -> None:
    storage = MemoryTokenStorage()
    async with protected(SERVED) as first, protected(SERVED) as second:
        await called(first, robot(storage=storage))
        await called(second, ClientCredentials("me", client_secret="another", storage=storage))


async def test_client_id_without_a_secret_can_be_sent_to_several_issuers() -> None:
    async with protected(SERVED) as first, protected(SERVED) as second:
        auth = OAuth(client_id="public", on_visit=AnyUser(first, second).visit)
        await called(first, auth)
        await called(second, auth)


class Failing(MemoryTokenStorage):
    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        raise OSError


async def test_client_secret_is_not_sent_if_the_token_storage_fails() -> None:
    async with protected(SERVED) as world:
        with pytest.raises(AuthorizationError, match="the storage of tokens failed"):
            await called(world, robot(storage=Failing()))
        assert saw_nothing(world)


async def remembered(storage: TokenStorage, world: World) -> None:
    """Have tokens kept that ``world`` has granted to the client ``me``, as if another one's secret had gone there."""
    record = IssuerRecord(
        client=RegisteredClient(client_id="me", auth_method="client_secret_basic"),
        tokens=Tokens(access_token="old", refresh_token="old-refresh"),
        resource=world.url,
    )
    await storage.save(world.url, StoredAuthorization()._with_record(world.origin, record))


@pytest.mark.parametrize("is_named", [True, False])
async def test_token_refresh_and_revocation_send_no_client_secret_to_another_issuer(is_named: bool) -> None:
    storage = MemoryTokenStorage()
    async with protected(SERVED, revoked=[]) as first, protected(SERVED, revoked=[]) as second:
        auth = user(storage=storage, on_visit=first.visit, issuer=first.origin if is_named else None)
        await called(first, auth)
        await remembered(storage, second)
        with pytest.raises(AuthorizationError):
            await called(second, auth)
        assert saw_nothing(second)
        fetcher = HttpFetcher(UrlRules.for_server(second.url))
        reasons = await sign_out(second.url, storage, auth._settings(), fetcher)
        if is_named:
            assert second.revoked == ["old"], "with the id alone"
        else:
            assert reasons is not None
            assert "belong to" in reasons[0]
            assert second.revoked == []


async def test_client_sends_no_identity_provider_request_if_its_credentials_belong_to_another_issuer() -> None:
    async with protected(SERVED) as first, protected(SERVED) as second, protected(SERVED) as provider:
        storage = MemoryTokenStorage()
        await called(first, robot(storage=storage))
        auth = EnterpriseManaged(
            idp_issuer=provider.origin,
            idp_client=PreregisteredClient(client_id="at-idp", client_secret="other"),
            subject_token="id-token",
            client=PreregisteredClient(client_id="me", client_secret=SECRET),
            storage=storage,
        )
        with pytest.raises(AuthorizationError, match="the credentials of this client belong to"):
            await called(second, auth)
        assert saw_nothing(second)
        assert saw_nothing(provider)
