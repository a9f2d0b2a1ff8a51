"""The owner of the tokens for one server: one way to a token at a time, and nothing lost on the way."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
from tests.auth.oauth_client.fake_source import ISSUER, URL, FakeSource, broken, opened, refusal, token_of
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.auth import AuthorizationError, MemoryTokenStorage
from trio_mcp.auth.oauth_client.token_keeper import TokenKeeper
from trio_mcp.auth.storage.records import IssuerRecord, StoredAuthorization, Tokens, TokenStorageFailed


async def kept(storage: MemoryTokenStorage) -> tuple[str, str | None] | None:
    stored = await storage.load(URL)
    tokens = None if stored is None else stored.tokens
    return None if tokens is None else (tokens.access_token, tokens.refresh_token)


async def signed_in(keeper: TokenKeeper) -> None:
    """Get the first token, some time ago."""
    await keeper.refused(await refusal(keeper))
    await trio.sleep(1)


async def storage_with(**tokens: object) -> MemoryTokenStorage:
    storage = MemoryTokenStorage()
    record = IssuerRecord(tokens=Tokens(access_token="stored", **tokens))  # type: ignore[arg-type]
    await storage.save(URL, StoredAuthorization()._with_record(ISSUER, record))
    return storage


# Tokens of requests


async def test_client_requests_no_token_before_the_server_requires_a_token() -> None:
    async with opened(FakeSource()) as keeper:
        assert await keeper.headers("POST") == ()


async def test_stored_access_token_is_sent_with_the_first_request() -> None:
    async with opened(FakeSource(), await storage_with()) as keeper:
        assert await token_of(keeper) == "stored"


async def test_client_sends_a_stored_token_even_if_it_has_expired() -> None:
    async with opened(FakeSource(), await storage_with(expires_at=1.0)) as keeper:
        assert await token_of(keeper) == "stored"


async def test_call_after_a_failed_read_of_the_token_storage_reads_the_storage_again() -> None:
    class Broken(MemoryTokenStorage):
        broken = True

        async def load(self, server_url: str) -> StoredAuthorization | None:
            if self.broken:
                raise TokenStorageFailed("no record")
            return await super().load(server_url)

    storage = Broken()
    async with opened(FakeSource(), storage) as keeper:
        with pytest.raises(TokenStorageFailed):
            await keeper.headers("POST")
        storage.broken = False
        assert await keeper.headers("POST") == ()


async def test_any_exception_of_the_token_storage_raises_authorization_error(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryTokenStorage):
        async def load(self, server_url: str) -> StoredAuthorization | None:
            raise KeyError("mine")

    async with opened(FakeSource(), Broken()) as keeper:
        with caplog.at_level(logging.CRITICAL), pytest.raises(AuthorizationError, match="failed: KeyError"):
            await keeper.headers("POST")


# Before expiry


async def test_access_token_is_refreshed_twenty_seconds_before_it_expires(autojump_clock: MockClock) -> None:
    source = FakeSource(lifetime=3600)
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.now += 3579
        assert await token_of(keeper) == "access-1"
        source.now += 2
        assert await token_of(keeper) == "access-2"


async def test_short_lived_access_token_is_refreshed_in_the_last_quarter_of_its_lifetime(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource(lifetime=8)
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.now += 5
        assert await token_of(keeper) == "access-1"
        source.now += 2
        assert await token_of(keeper) == "access-2"


async def test_concurrent_calls_wait_for_a_token_refresh_before_the_token_expires(autojump_clock: MockClock) -> None:
    source = FakeSource(lifetime=100)
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.now += 99
        tokens = list[str | None]()

        async def ask() -> None:
            tokens.append(await token_of(keeper))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
    assert tokens == ["access-2"] * 50
    assert source.asked == ["visit", "code", "refresh-1"]


@pytest.mark.parametrize("failure", [broken(), AuthorizationError("later", code="temporarily_unavailable")])
async def test_token_refresh_that_fails_before_the_token_expires_is_not_retried_immediately(
    failure: Exception, autojump_clock: MockClock
) -> None:
    source = FakeSource(lifetime=100)
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.now += 99
        source.failure = failure
        assert [await token_of(keeper) for _ in range(3)] == ["access-1"] * 3
        assert source.asked == ["visit", "code", "refresh-1"]
        source.failure = None
        await trio.sleep(1)
        await keeper.refused(await refusal(keeper))  # the token is over now
        assert await token_of(keeper) == "access-2"


# Refused tokens


async def test_fifty_concurrently_rejected_requests_cause_one_token_refresh(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as keeper:
        await signed_in(keeper)
        request = await refusal(keeper)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(keeper.refused, request)
        assert await token_of(keeper) == "access-2"
    assert source.asked == ["visit", "code", "refresh-1"]
    assert await kept(storage) == ("access-2", "refresh-2")


async def test_request_rejected_with_an_already_replaced_token_is_resent_without_a_second_token_refresh(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        late = await refusal(keeper)
        await keeper.refused(late)
        await keeper.refused(late)
    assert source.asked == ["visit", "code", "refresh-1"]


async def test_rejected_refresh_token_is_removed_but_the_access_token_is_kept(
    autojump_clock: MockClock,
) -> None:
    source, storage = FakeSource(lifetime=100), MemoryTokenStorage()
    async with opened(source, storage) as keeper:
        await signed_in(keeper)
        source.now += 99
        source.good = "another"
        assert await token_of(keeper) == "access-1"
        assert await kept(storage) == ("access-1", None)


async def test_failed_sign_in_is_not_repeated_for_requests_that_were_sent_before_the_failure(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource(failure=AuthorizationError("no", code="unauthorized_client"))
    async with opened(source) as keeper:
        earlier = await refusal(keeper)
        with pytest.raises(AuthorizationError):
            await keeper.refused(earlier)
        await trio.sleep(1)
        with pytest.raises(AuthorizationError) as caught:
            await keeper.refused(earlier)
        assert caught.value.code == "unauthorized_client"
        assert source.asked.count("code") == 1
        with pytest.raises(AuthorizationError):
            await keeper.refused(await refusal(keeper))
        assert source.asked.count("code") == 2


async def test_request_refused_for_a_reason_unrelated_to_tokens_raises_authorization_error() -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        with pytest.raises(AuthorizationError, match="HTTP status 403: the token is not the reason"):
            await keeper.refused(await refusal(keeper, 403))
    assert source.asked == []


async def test_exception_does_not_quote_the_error_text_of_a_challenge() -> None:
    async with opened(FakeSource()) as keeper:
        request = attrs.evolve(await refusal(keeper, 400), challenges='Bearer error="your s3cret"')
        with pytest.raises(AuthorizationError) as caught:
            await keeper.refused(request)
    assert "s3cret" not in str(caught.value)
    assert caught.value.code is None


async def test_rejected_request_is_resent_at_most_six_times() -> None:
    async with opened(FakeSource()) as keeper:
        with pytest.raises(AuthorizationError, match="6 attempts failed"):
            await keeper.refused(await refusal(keeper, attempt=6))


async def test_client_requests_more_scopes_at_most_twice_for_one_refused_request(autojump_clock: MockClock) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        begun = trio.current_time()
        for attempt, scope in enumerate(("a", "a b"), 1):
            await keeper.refused(await refusal(keeper, 403, attempt=attempt, begun=begun, scope=scope))
        with pytest.raises(AuthorizationError, match="more scopes after each new token") as caught:
            await keeper.refused(await refusal(keeper, 403, attempt=3, begun=begun, scope="a b c"))
        assert caught.value.code == "insufficient_scope"
        await trio.sleep(1)
        await keeper.refused(await refusal(keeper, 403, scope="a b c"))
    assert source.asked.count("visit") == 4


async def test_other_calls_continue_while_the_client_requests_more_scopes(autojump_clock: MockClock) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.visit_gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.refused, await refusal(keeper, 403, scope="more"))
            await wait_all_tasks_blocked()
            assert await token_of(keeper) == "access-1"
            source.visit_gate.set()
        assert await token_of(keeper) == "access-2"


# Who waits, and who leaves


async def test_cancelled_call_does_not_end_the_sign_in_of_other_calls() -> None:
    source = FakeSource(visit_gate=trio.Event())
    async with opened(source) as keeper:
        request = await refusal(keeper)
        async with trio.open_nursery() as nursery:
            leaving = trio.CancelScope()

            async def leave() -> None:
                with leaving:
                    await keeper.refused(request)

            nursery.start_soon(leave)
            await wait_all_tasks_blocked()
            nursery.start_soon(keeper.refused, request)
            await wait_all_tasks_blocked()
            leaving.cancel()
            await wait_all_tasks_blocked()
            assert source.prepared == 1
            source.visit_gate.set()
        assert await token_of(keeper) == "access-1"
    assert source.asked == ["visit", "code"]


async def test_sign_in_ends_when_the_last_waiting_call_is_cancelled(autojump_clock: MockClock) -> None:
    source = FakeSource(visit_gate=trio.Event())
    async with opened(source) as keeper:
        with trio.move_on_after(5):
            await keeper.refused(await refusal(keeper))
        await wait_all_tasks_blocked()
        assert source.prepared == 0
        source.visit_gate.set()
        await keeper.refused(await refusal(keeper))
    assert source.asked == ["visit", "visit", "code"]


async def test_token_request_finishes_although_the_call_that_needs_the_token_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as keeper:
        await signed_in(keeper)
        source.fetch_gate = trio.Event()
        with trio.move_on_after(5):
            await keeper.refused(await refusal(keeper))
        assert await kept(storage) == ("access-1", "refresh-1")
        source.fetch_gate.set()
        await wait_all_tasks_blocked()
        assert await kept(storage) == ("access-2", "refresh-2")
        assert await token_of(keeper) == "access-2"


async def test_token_request_finishes_while_the_client_closes(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with trio.open_nursery() as nursery, opened(source, storage) as keeper:
        await signed_in(keeper)
        source.fetch_gate = trio.Event()
        with trio.move_on_after(5):
            await keeper.refused(await refusal(keeper))

        async def answer() -> None:
            await trio.sleep(4)
            assert source.fetch_gate is not None
            source.fetch_gate.set()

        nursery.start_soon(answer)
    assert await kept(storage) == ("access-2", "refresh-2")


async def test_closing_the_client_waits_five_seconds_for_an_unanswered_token_request(autojump_clock: MockClock) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.fetch_gate = trio.Event()
        with trio.move_on_after(5):
            await keeper.refused(await refusal(keeper))
        closing = trio.current_time()
    assert trio.current_time() - closing == pytest.approx(5)


async def test_calls_that_wait_for_an_unanswered_token_request_fail_after_a_timeout(autojump_clock: MockClock) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        source.fetch_gate = trio.Event()
        with trio.fail_after(PATIENCE + 1), pytest.raises(AuthorizationError, match="did not respond in time"):
            await keeper.refused(await refusal(keeper))


async def test_client_uses_a_new_token_even_if_the_token_cannot_be_stored(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    class Full(MemoryTokenStorage):
        full = False

        async def save(self, server_url: str, stored: StoredAuthorization) -> None:
            if self.full:
                raise TokenStorageFailed("no room")
            await super().save(server_url, stored)

    source, storage = FakeSource(), Full()
    async with opened(source, storage) as keeper:
        await signed_in(keeper)
        storage.full = True
        await keeper.refused(await refusal(keeper))
        assert await token_of(keeper) == "access-2"
        await trio.sleep(1)
        storage.full = False
        await keeper.refused(await refusal(keeper))
        assert await token_of(keeper) == "access-3"
    assert await kept(storage) == ("access-3", "refresh-3")
    assert source.asked == ["visit", "code", "refresh-1", "refresh-2"]
    assert "could not be stored, but are used: no room" in caplog.text


async def test_background_http_request_refused_for_lack_of_a_token_never_starts_a_sign_in(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource()
    async with opened(source) as keeper, trio.open_nursery() as nursery:
        waiting = attrs.evolve(await refusal(keeper), is_background=True)
        again = trio.Event()

        async def wait() -> None:
            await keeper.refused(waiting)
            again.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert source.asked == []
        source.visit_gate = trio.Event()
        with trio.move_on_after(5):
            await keeper.refused(await refusal(keeper))
        await wait_all_tasks_blocked()
        assert source.prepared == 0, "nobody waits for the user any more"
        source.visit_gate.set()
        await keeper.refused(await refusal(keeper))
        await again.wait()


async def test_background_http_request_refused_for_an_expired_token_can_refresh_the_token(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource()
    async with opened(source) as keeper:
        await signed_in(keeper)
        await keeper.refused(attrs.evolve(await refusal(keeper), is_background=True))
    assert source.asked == ["visit", "code", "refresh-1"]


# Several keepers, one storage


async def test_client_uses_tokens_that_another_process_refreshed(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as one, opened(source, storage) as other:
        await signed_in(one)
        assert await token_of(other) == "access-1"
        await one.refused(await refusal(one))
        await other.refused(await refusal(other))
        assert await token_of(other) == "access-2"
    assert source.asked == ["visit", "code", "refresh-1"]


async def test_two_clients_that_share_a_token_storage_refresh_the_token_once(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as one, opened(source, storage) as other:
        await signed_in(one)
        await token_of(other)
        async with trio.open_nursery() as nursery:
            for keeper in (one, other):
                nursery.start_soon(keeper.refused, await refusal(keeper))
        assert [await token_of(keeper) for keeper in (one, other)] == ["access-2"] * 2
    assert source.asked == ["visit", "code", "refresh-1"]


async def test_client_uses_the_tokens_of_a_sign_in_by_another_process(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as one, opened(source, storage) as other:
        assert await token_of(other) is None
        await signed_in(one)
        await other.refused(await refusal(other))
        assert await token_of(other) == "access-1"
    assert source.asked == ["visit", "code"]


async def test_sign_out_by_another_process_requires_a_new_sign_in(autojump_clock: MockClock) -> None:
    source, storage = FakeSource(), MemoryTokenStorage()
    async with opened(source, storage) as keeper:
        await signed_in(keeper)
        await storage.remove(URL)
        await keeper.refused(await refusal(keeper))
        assert await token_of(keeper) == "access-2"
    assert source.asked == ["visit", "code", "visit", "code"]


async def test_token_storage_lock_is_not_held_during_the_sign_in() -> None:
    source, storage = FakeSource(visit_gate=trio.Event()), MemoryTokenStorage()
    async with opened(source, storage) as keeper, trio.open_nursery() as nursery:
        nursery.start_soon(keeper.refused, await refusal(keeper))
        await wait_all_tasks_blocked()
        with trio.fail_after(PATIENCE):
            async with storage.lock(URL):
                pass
        nursery.cancel_scope.cancel()


# Cancels


@pytest.mark.parametrize("way", ["sign in", "refresh"])
async def test_token_storage_stays_consistent_if_the_client_is_cancelled_at_any_checkpoint(
    way: str, autojump_clock: MockClock
) -> None:
    outcomes = set[str]()
    for steps in range(60):
        source, storage = FakeSource(), MemoryTokenStorage()
        async with opened(source, storage) as keeper:
            if way == "refresh":
                await signed_in(keeper)
            before = await kept(storage)
            request = await refusal(keeper)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keeper.refused, request)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            now = await kept(storage)
            # What is stored is what the authorization server holds to be good.
            assert source.good == (None if now is None else now[1])
            outcomes.add("nothing" if now == before else "all")
            await trio.sleep(1)
            await keeper.refused(await refusal(keeper))
            assert await token_of(keeper) == f"access-{source.issued}"
    assert outcomes == {"nothing", "all"}
