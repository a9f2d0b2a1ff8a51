"""Who is let in, and in which words others are refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.auth import Auth, Principal, VerifierUnavailable
from trio_mcp.auth.credentials import Challenge
from trio_mcp.auth.resource_server.protected import presented_token
from trio_mcp.auth.resource_server.refusals import Refusal

from .asking import (
    ISSUER,
    METADATA,
    NOW,
    Clock,
    Head,
    Verifier,
    anna,
    asked,
    bearing,
    challenges,
    let_in,
    protected,
    refused,
)

WHERE = {"resource_metadata": METADATA}


async def test_valid_token_authenticates_its_principal() -> None:
    gate = protected(Verifier(good=anna()))._gate()
    auth = await let_in(gate, bearing("good"))
    assert (auth.token, auth.principal.id, dict(auth.extra)) == ("good", (ISSUER, "anna", False), {})


async def test_token_verifier_can_be_a_function() -> None:
    gate = protected(Verifier(good=anna()).verify)._gate()
    assert (await let_in(gate, bearing("good"))).client_id == "app"


async def test_request_without_a_token_gets_a_challenge_with_the_resource_metadata_url() -> None:
    refusal = await refused(protected(scopes=["b", "a"])._gate(), Head())
    assert refusal.status == HTTPStatus.UNAUTHORIZED
    assert challenges(refusal) == [Challenge("bearer", {**WHERE, "scope": "a b"})]


async def test_challenge_names_no_scope_if_none_is_required() -> None:
    assert challenges(await refused(protected()._gate(), Head())) == [Challenge("bearer", WHERE)]


@pytest.mark.parametrize("value", ["Basic YTpi", "Digest a=b", "Bearers good", "DPoP good", ""])
async def test_authorization_header_with_an_unsupported_scheme_gets_status_401_without_an_error_code(
    value: str,
) -> None:
    refusal = await refused(protected(Verifier(good=anna()))._gate(), Head({"authorization": value}))
    assert (refusal.status, challenges(refusal)) == (HTTPStatus.UNAUTHORIZED, [Challenge("bearer", WHERE)])


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer ", "bEaReR  "])
async def test_authorization_scheme_is_case_insensitive(scheme: str) -> None:
    assert await let_in(protected(Verifier(good=anna()))._gate(), Head({"authorization": f"{scheme} good"}))


@pytest.mark.parametrize(
    "value",
    [
        "Bearer",
        "Bearer ",
        "Bearer a b",
        "Bearer a, Bearer b",
        "Bearer =",
        "Bearer a=b",
        "Bearer ä",
        "Bearer\ta",
        "Bea(rer a",
    ],
)
async def test_malformed_bearer_credentials_get_status_400(value: str) -> None:
    refusal = await refused(protected()._gate(), Head({"authorization": value}))
    assert refusal.status == HTTPStatus.BAD_REQUEST
    assert challenges(refusal)[0].params["error"] == "invalid_request"


async def test_several_authorization_headers_get_status_400() -> None:
    head = Head({"authorization": "Bearer good"}, frozenset({"authorization"}))
    refusal = await refused(protected(Verifier(good=anna()))._gate(), head)
    assert refusal.status == HTTPStatus.BAD_REQUEST
    assert challenges(refusal)[0].params["error"] == "invalid_request"


async def test_invalid_token_gets_status_401_without_a_reason() -> None:
    refusal = await refused(protected(scopes=["a"])._gate(), bearing("bad"))
    assert refusal.status == HTTPStatus.UNAUTHORIZED
    (challenge,) = challenges(refusal)
    assert dict(challenge.params) == {
        "error": "invalid_token",
        "error_description": "the access token is expired, revoked, or for another server",
        **WHERE,
        "scope": "a",
    }


async def test_insufficient_scope_error_lists_all_required_scopes() -> None:
    refusal = await refused(protected(Verifier(good=anna("a")), scopes=["b", "a"])._gate(), bearing("good"))
    assert refusal.status == HTTPStatus.FORBIDDEN
    (challenge,) = challenges(refusal)
    assert dict(challenge.params) == {
        "error": "insufficient_scope",
        "error_description": "the access token lacks a required scope",
        **WHERE,
        "scope": "a b",
    }


async def test_insufficient_scope_challenge_lists_scopes_of_the_operation_and_the_server() -> None:
    gate = protected(Verifier(good=anna("all")), scopes=["all"])._gate()
    auth = await let_in(gate, bearing("good"))
    refusal = gate.missing(auth, ["write", "read"])
    assert refusal is not None
    assert (refusal.status, challenges(refusal)[0].params["scope"]) == (HTTPStatus.FORBIDDEN, "all read write")
    assert gate.missing(auth, ["all"]) is None
    assert gate.missing(auth, []) is None


async def test_server_can_define_that_a_broader_scope_includes_a_required_scope() -> None:
    def satisfies(granted: frozenset[str], needed: str) -> bool:
        return f"{needed.partition(':')[0]}:*" in granted

    gate = protected(Verifier(good=anna("files:*")), scopes=["files:read"], satisfies=satisfies)._gate()
    auth = await let_in(gate, bearing("good"))
    assert gate.missing(auth, ["files:write"]) is None
    assert gate.missing(auth, ["files:write", "mail:read"]) is not None


@pytest.mark.parametrize(("value", "status"), [(None, 401), ("Bearer", 400), ("Bearer a b", 400), ("Bearer bad", 401)])
async def test_malformed_authorization_headers_are_refused(value: str | None, status: int) -> None:
    found = await protected()._gate().ask(Head({} if value is None else {"authorization": value}))
    assert isinstance(found, Refusal)
    assert found.status == status


def test_repr_of_auth_objects_contains_no_token() -> None:
    came = presented_token("Bearer s3cret", {"bearer"})
    assert came is not None
    assert "s3cret" not in repr(came) + repr(Auth(came.token, anna()))


# Caching


async def test_verified_token_is_accepted_from_the_cache_without_a_second_verification() -> None:
    verifier = Verifier(good=anna())
    gate = protected(verifier)._gate()
    assert gate.known(bearing("good")) is None
    await gate.ask(bearing("good"))
    assert isinstance(gate.known(bearing("good")), Auth)
    assert isinstance(gate.known(bearing("bad")), Refusal | None)
    assert verifier.asked == ["good"]


@pytest.mark.parametrize(
    ("cache_for", "expires_in", "good_for"),
    [(None, None, 60), (None, 300, 300), (20, 300, 20), (20, None, 20), (400, 300, 300)],
)
async def test_verified_token_is_cached_until_it_or_the_cache_entry_expires(
    cache_for: float | None, expires_in: float | None, good_for: float
) -> None:
    clock = Clock()
    verifier = Verifier(good=anna(expires_at=None if expires_in is None else NOW + expires_in))
    gate = protected(verifier, cache_for=cache_for)._gate(now=clock)
    await let_in(gate, bearing("good"))
    clock.now = NOW + good_for - 1
    assert isinstance(gate.known(bearing("good")), Auth)
    clock.now = NOW + good_for
    assert gate.known(bearing("good")) is None


async def test_token_is_refused_if_the_verifier_returns_an_expired_principal() -> None:
    refusal = await refused(protected(Verifier(old=anna(expires_at=NOW)))._gate(now=Clock()), bearing("old"))
    assert challenges(refusal)[0].params["error"] == "invalid_token"


async def test_invalid_token_is_cached_for_a_few_seconds() -> None:
    clock, verifier = Clock(), Verifier()
    gate = protected(verifier)._gate(now=clock)
    for _ in range(3):
        await refused(gate, bearing("bad"))
    clock.now += 10
    await refused(gate, bearing("bad"))
    assert verifier.asked == ["bad", "bad"]


async def test_cached_invalid_tokens_never_displace_cached_valid_tokens() -> None:
    verifier = Verifier(a=anna(), b=anna(), c=anna())
    gate = protected(verifier, max_cached=2)._gate()
    for token in ("a", "b", "c", "x", "y", "z"):
        await asked(gate, bearing(token))
    found = {token: gate.known(bearing(token)) is not None for token in "abcxyz"}
    assert found == {"a": False, "b": True, "c": True, "x": False, "y": True, "z": True}


class Slow(Verifier):
    """Answers when it is told to."""

    def __init__(self, **principals: Principal) -> None:
        super().__init__(**principals)
        self.go = trio.Event()

    async def verify(self, token: str) -> Principal | None:
        principal = await super().verify(token)
        await self.go.wait()
        return principal


async def test_concurrent_requests_with_equal_tokens_cause_one_token_verification() -> None:
    verifier = Slow(good=anna())
    gate, found = protected(verifier)._gate(), list[Any]()

    async def ask() -> None:
        found.append(await gate.ask(bearing("good")))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        verifier.go.set()
    assert verifier.asked == ["good"]
    assert {auth.principal.id for auth in found} == {(ISSUER, "anna", False)}


async def test_cancelled_request_does_not_cancel_a_token_verification_that_another_request_awaits() -> None:
    verifier = Slow(good=anna())
    gate, found = protected(verifier)._gate(), list[Any]()
    leaving = trio.CancelScope()

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            found.append(await gate.ask(bearing("good")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, leaving)
        await wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(ask, trio.CancelScope())
        await wait_all_tasks_blocked()
        leaving.cancel(reason="the client is gone")
        await wait_all_tasks_blocked()
        verifier.go.set()
    assert len(found) == 3
    assert all(isinstance(auth, Auth) for auth in found)


async def test_too_many_concurrent_token_verifications_get_status_503_with_retry_after() -> None:
    verifier = Slow(a=anna(), b=anna())
    gate = protected(verifier, max_verifications=1)._gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.ask, bearing("a"))
        await wait_all_tasks_blocked()
        refusal = await refused(gate, bearing("b"))
        assert verifier.asked == ["a"]
        verifier.go.set()
    assert (refusal.status, dict(refusal.headers)) == (HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"})
    assert await let_in(gate, bearing("b")), "nothing of that is remembered"


# Functions of the author that fail


async def test_cached_tokens_stay_valid_while_the_token_verifier_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def verify(token: str) -> Principal | None:
        raise VerifierUnavailable(f"no answer about {token}")

    refusal = await refused(protected(verify)._gate(), bearing("secret-token"))
    assert (refusal.status, dict(refusal.headers)) == (HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"})
    assert caplog.messages == ["tokens cannot be verified: no answer about <token>"]


async def test_request_gets_status_503_if_the_token_verifier_does_not_answer_within_30_seconds(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    refusal = await refused(protected(Slow())._gate(), bearing("good"))
    assert refusal.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert trio.current_time() == pytest.approx(30)
    assert "did not answer within 30 s" in caplog.text


async def test_exception_in_a_token_verifier_is_logged_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    async def verify(token: str) -> Principal | None:
        raise RuntimeError(f"no row for {token}")

    refusal = await refused(protected(verify)._gate(), bearing("secret-token"))
    assert (refusal.status, refusal.headers) == (HTTPStatus.INTERNAL_SERVER_ERROR, ())
    assert "RuntimeError: no row for <token>" in caplog.text
    assert "Traceback" in caplog.text
    assert "secret-token" not in caplog.text + refusal.reason


async def test_token_verifier_that_returns_an_invalid_value_gets_status_500(caplog: pytest.LogCaptureFixture) -> None:
    async def verify(token: str) -> Any:
        return True

    assert (await refused(protected(verify)._gate(), bearing("good"))).status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert caplog.records[0].exc_info


async def test_exception_in_the_function_that_compares_scopes_gets_status_500(caplog: pytest.LogCaptureFixture) -> None:
    def satisfies(granted: frozenset[str], needed: str) -> bool:
        raise RuntimeError("oh")

    gate = protected(Verifier(good=anna()), scopes=["a"], satisfies=satisfies)._gate()
    assert (await refused(gate, bearing("good"))).status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert caplog.messages == ["satisfies failed"]


# on_authenticated


async def test_on_authenticated_function_is_called_once_per_request() -> None:
    calls = list[tuple[str, str]]()

    async def on_authenticated(principal: Principal, headers: Mapping[str, str]) -> Mapping[str, Any]:
        calls.append((principal.subject, headers["X-Tenant"]))
        return {"number": len(calls)}

    gate = protected(Verifier(good=anna()), on_authenticated=on_authenticated)._gate()
    head = Head({"authorization": "Bearer good", "x-tenant": "blue"})
    assert [dict((await let_in(gate, head)).extra) for _ in range(2)] == [{"number": 1}, {"number": 2}]
    assert calls == [("anna", "blue")] * 2


async def test_on_authenticated_function_is_not_called_for_refused_requests() -> None:
    async def on_authenticated(principal: Principal, headers: Mapping[str, str]) -> Mapping[str, Any]:
        raise AssertionError

    gate = protected(Verifier(good=anna()), scopes=["a"], on_authenticated=on_authenticated)._gate()
    assert [(await refused(gate, bearing(token))).status for token in ("good", "bad")] == [403, 401]
    assert isinstance(gate.known(bearing("bad")), Refusal)


async def test_exception_in_the_on_authenticated_function_refuses_the_request(caplog: pytest.LogCaptureFixture) -> None:
    async def on_authenticated(principal: Principal, headers: Mapping[str, str]) -> Mapping[str, Any]:
        raise RuntimeError(headers["authorization"])

    gate = protected(Verifier(token=anna()), on_authenticated=on_authenticated)._gate()
    assert (await refused(gate, bearing("token"))).status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert caplog.records[0].levelno == logging.ERROR
    assert "RuntimeError: Bearer <token>" in caplog.text
