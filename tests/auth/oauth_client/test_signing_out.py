"""Signing out: the record is gone whatever the authorization servers say, and these have ten seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.auth.oauth_client.scripted_web import ISSUER, SERVER, answer, server_metadata, settings
from tests.auth.storage.places import record
from trio.testing import MockClock

from trio_mcp.auth import FileTokenStorage, MemoryTokenStorage, StoredAuthorization, TokenStorage
from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed
from trio_mcp.auth.oauth_client.authorization_code import sign_out
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, Tokens

GONE = "https://gone.example"


class Web:
    """The authorization server that revokes, one that nobody reaches, and one that hangs."""

    def __init__(self, *, hangs: bool = False, storage: TokenStorage | None = None) -> None:
        self.hangs = hangs
        self.storage = storage
        self.asked: list[str] = []
        self.kept: list[StoredAuthorization | None] = []

    async def fetch(self, request: Fetch) -> Fetched:
        self.asked.append(request.url)
        if self.storage is not None:
            self.kept.append(await self.storage.load(SERVER))
        if self.hangs:
            await trio.sleep_forever()
        if request.url.startswith(GONE):
            raise FetchFailed("nobody listens there")
        if request.url.endswith("/revoke"):
            return answer(b"")
        return answer(server_metadata(revocation_endpoint=f"{ISSUER}/revoke"))


def signed_in(*issuers: str) -> StoredAuthorization:
    stored = StoredAuthorization()
    for issuer in issuers:
        client = RegisteredClient(client_id="c", redirect_uris=("http://127.0.0.1/",))
        stored = stored._with_record(issuer, IssuerRecord(client=client, tokens=Tokens(access_token="secret")))
    return stored


async def test_sign_out_deletes_the_stored_tokens_before_it_revokes_the_tokens() -> None:
    storage = MemoryTokenStorage()
    await storage.save(SERVER, signed_in(ISSUER))
    web = Web(storage=storage)
    assert await sign_out(SERVER, storage, settings(), web) == []
    assert web.asked[-1] == f"{ISSUER}/revoke"
    assert set(web.kept) == {None}


async def test_sign_out_revokes_tokens_although_another_issuer_is_unreachable() -> None:
    storage, web = MemoryTokenStorage(), Web()
    await storage.save(SERVER, signed_in(GONE, ISSUER))
    (reason,) = await sign_out(SERVER, storage, settings(), web) or ()
    assert GONE in reason
    assert "secret" not in reason
    assert web.asked[-1] == f"{ISSUER}/revoke"


async def test_sign_out_waits_at_most_ten_seconds_for_the_authorization_server(autojump_clock: MockClock) -> None:
    storage = MemoryTokenStorage()
    await storage.save(SERVER, signed_in(ISSUER))
    reasons = await sign_out(SERVER, storage, settings(), Web(hangs=True))
    assert reasons == ["the authorization server did not answer within 10 s"]
    assert trio.current_time() == pytest.approx(10)


async def test_sign_out_without_stored_tokens_sends_no_request() -> None:
    web = Web()
    assert await sign_out(SERVER, MemoryTokenStorage(), settings(), web) is None
    assert web.asked == []


async def test_sign_out_deletes_an_unreadable_token_record_and_reports_that_it_was_unreadable(tmp_path: Path) -> None:
    storage, web = FileTokenStorage(tmp_path / "tokens"), Web()
    await storage.save(SERVER, record("old"))
    (file,) = storage.folder.iterdir()
    file.write_text("{")
    (reason,) = await sign_out(SERVER, storage, settings(), web) or ()
    assert "not a record that this version can read" in reason
    assert await storage.load(SERVER) is None


async def test_sign_out_waits_until_a_running_token_refresh_ends() -> None:
    storage = MemoryTokenStorage()
    await storage.save(SERVER, signed_in(ISSUER))
    async with trio.open_nursery() as nursery, storage.lock(SERVER):
        nursery.start_soon(sign_out, SERVER, storage, settings(), Web())
        await trio.testing.wait_all_tasks_blocked()
        assert await storage.load(SERVER) is not None
    assert await storage.load(SERVER) is None
