"""Tokens that are bound to a key: what a client has to show with each request."""

from __future__ import annotations

import hashlib
import logging
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.auth import Auth, Principal
from trio_mcp.auth.resource_server.proof_checks import ProofNonces, ProofReplayGuard, TooManyProofs
from trio_mcp.auth.resource_server.protected import Gate
from trio_mcp.auth.resource_server.refusals import Refusal
from trio_mcp.auth.signing import ProofKey
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.task_store import StoreDown

from .asking import NOW, RESOURCE, Clock, Head, Verifier, anna, asked, bearing, challenges, let_in, protected, refused
from .minting import ec_key, jwk, okp_key, rsa_key, signed_text

KEY = ProofKey.generate()
OTHER = ProofKey.generate()
TOKENS = {"bound": anna(key_thumbprint=KEY.thumbprint), "free": anna()}


def gate_of(dpop: str = "accepted", now: Any = lambda: NOW, **more: Any) -> Gate:
    return protected(Verifier(**TOKENS), dpop=dpop, **more)._gate(now=now)


def proven(proof: str, token: str = "bound", method: str = "POST") -> Head:
    return Head({"authorization": f"DPoP {token}", "dpop": proof}, method=method)


def proof(key: ProofKey = KEY, method: str = "POST", url: str = RESOURCE, token: str = "bound", **more: Any) -> str:
    return key.proof(method, url, token=token, **{"now": NOW, **more})


def errors(refusal: Refusal) -> dict[str, str | None]:
    return {challenge.scheme: challenge.params.get("error") for challenge in challenges(refusal)}


async def test_dpop_bound_token_with_a_proof_of_its_key_is_accepted() -> None:
    auth = await let_in(gate_of(), proven(proof()))
    assert auth.principal.key_thumbprint == KEY.thumbprint


async def test_reused_dpop_proof_gets_status_401() -> None:
    gate, head = gate_of(), proven(proof())
    await let_in(gate, head)
    refusal = await refused(gate, head)
    assert (refusal.status, refusal.reason) == (HTTPStatus.UNAUTHORIZED, "the DPoP proof was used before")
    assert await let_in(gate, proven(proof()))


async def test_result_of_on_authenticated_is_returned_for_each_request_with_a_dpop_proof() -> None:
    async def on_authenticated(principal: Principal, headers: Mapping[str, str]) -> Mapping[str, Any]:
        return {"looked": "up"}

    gate = gate_of(on_authenticated=on_authenticated)
    assert [dict((await let_in(gate, proven(proof()))).extra) for _ in range(2)] == [{"looked": "up"}] * 2


@pytest.mark.parametrize("dpop", ["off", "accepted"])
async def test_dpop_bound_token_without_a_proof_gets_status_401(dpop: str) -> None:
    refusal = await refused(gate_of(dpop), bearing("bound"))
    assert refusal.status == HTTPStatus.UNAUTHORIZED
    assert errors(refusal)["bearer"] == "invalid_token"


async def test_bearer_token_needs_no_dpop_proof_if_the_server_accepts_bearer_and_dpop() -> None:
    assert await let_in(gate_of(), bearing("free"))


async def test_bearer_token_is_refused_if_dpop_is_required() -> None:
    refusal = await refused(gate_of("required"), bearing("free"))
    assert (refusal.status, list(errors(refusal))) == (HTTPStatus.UNAUTHORIZED, ["dpop"])


async def test_bearer_token_with_a_dpop_proof_is_refused() -> None:
    refusal = await refused(gate_of("required"), proven(proof(token="free"), "free"))
    assert errors(refusal) == {"dpop": "invalid_dpop_proof"}


async def test_challenge_offers_bearer_and_dpop_if_the_server_accepts_both_schemes() -> None:
    refusal = await refused(gate_of(scopes=["a"]), Head())
    bearer, dpop = challenges(refusal)
    assert (bearer.scheme, dpop.scheme) == ("bearer", "dpop")
    assert "ES256" in dpop.params["algs"].split()
    assert {**dpop.params, "algs": ""} == {**bearer.params, "algs": ""}


@pytest.mark.parametrize(("scheme", "used"), [("Bearer", "bearer"), ("DPoP", "dpop")])
async def test_only_the_challenge_for_the_scheme_that_the_request_used_contains_the_token_error(
    scheme: str, used: str
) -> None:
    refusal = await refused(gate_of(), Head({"authorization": f"{scheme} bad", "dpop": proof(token="bad")}))
    assert errors(refusal) == {"bearer": None, "dpop": None, used: "invalid_token"}


async def test_only_the_challenge_for_the_scheme_that_the_request_used_contains_insufficient_scope() -> None:
    gate = gate_of(scopes=["a"])
    assert errors(await refused(gate, proven(proof()))) == {"bearer": None, "dpop": "insufficient_scope"}
    assert errors(await refused(gate, bearing("free"))) == {"bearer": "insufficient_scope", "dpop": None}


async def test_several_dpop_proofs_in_one_request_are_refused() -> None:
    gate = gate_of()
    for head in (
        Head({"authorization": "DPoP bound"}),
        Head({"authorization": "DPoP bound", "dpop": proof()}, frozenset({"dpop"})),
        proven(f"{proof()}, {proof()}"),
        proven(""),
    ):
        assert errors(await refused(gate, head)) == {"bearer": None, "dpop": "invalid_dpop_proof"}


@pytest.mark.parametrize(
    "url",
    [
        RESOURCE,
        f"{RESOURCE}/",
        f"{RESOURCE}?a=1",
        f"{RESOURCE}#part",
        f"{RESOURCE}?a#b",
        "HTTPS://MCP.Example.COM:443/mcp",
    ],
)
async def test_dpop_proof_with_an_equivalent_spelling_of_the_resource_url_is_valid(url: str) -> None:
    assert await let_in(gate_of(), proven(made(claims={"htu": url})))


async def test_query_of_the_resource_url_is_ignored_in_a_dpop_proof() -> None:
    assert await let_in(gate_of(resource=f"{RESOURCE}?a=1"), proven(proof()))


async def test_dpop_proof_for_the_method_of_the_request_is_accepted() -> None:
    assert await let_in(gate_of(), proven(proof(method="GET"), method="GET"))


def made(
    key: Any = None, header: Mapping[str, Any] | None = None, claims: Mapping[str, Any] | None = None, *, jti: str = "1"
) -> str:
    """A proof written by hand, good but for what is given."""
    ath = urlsafe_b64encode(hashlib.sha256(b"bound").digest()).rstrip(b"=").decode()
    key = key or KEY._key  # pyright: ignore[reportPrivateUsage]
    heading = {"typ": "dpop+jwt", "alg": "ES256", "jwk": key.as_dict(private=False), **(header or {})}
    said = {"jti": jti, "htm": "POST", "htu": RESOURCE, "iat": NOW, "ath": ath, **(claims or {})}
    return signed_text(
        {name: value for name, value in heading.items() if value is not None},
        {name: value for name, value in said.items() if value is not None},
        key,
    )


async def test_valid_dpop_proof_built_by_hand_is_accepted() -> None:
    assert await let_in(gate_of(), proven(made()))


BAD: dict[str, str] = {
    "of another key": proof(OTHER),
    "of another token": proof(token="other"),
    "of no token": made(claims={"ath": None}),
    "of another method": proof(method="GET"),
    "of the method in small letters": made(claims={"htm": "post"}),
    "of no method": made(claims={"htm": None}),
    "of another path": proof(url="https://mcp.example.com/other"),
    "of another host": proof(url="https://evil.example/mcp"),
    "of another scheme": made(claims={"htu": "http://mcp.example.com/mcp"}),
    "of another port": made(claims={"htu": "https://mcp.example.com:8443/mcp"}),
    "of a path in other letters": made(claims={"htu": "https://mcp.example.com/MCP"}),
    "of no URL": made(claims={"htu": None}),
    "of what is no URL": made(claims={"htu": "mcp"}),
    "of a URL with a user": made(claims={"htu": "https://u@mcp.example.com/mcp"}),
    "of a URL that is no text": made(claims={"htu": [RESOURCE]}),
    "too old": proof(now=NOW - 61),
    "of the future": proof(now=NOW + 61),
    "of no time": made(claims={"iat": None}),
    "of a time that is text": made(claims={"iat": str(NOW)}),
    "of a time that is true": made(claims={"iat": True}),
    "of a huge time": made(claims={"iat": 10**400}),
    "without a name": made(claims={"jti": None}),
    "with an empty name": made(claims={"jti": ""}),
    "with a name that is a number": made(claims={"jti": 7}),
    "of another type": made(header={"typ": "JWT"}),
    "of no type": made(header={"typ": None}),
    "without a key": made(header={"jwk": None}),
    "with a private key": made(header={"jwk": KEY.to_jwk()}),
    "with a key that is text": made(header={"jwk": "abc"}),
    "with the key of somebody else": made(OTHER._key, header={"jwk": KEY._key.as_dict(private=False)}),
    "with a long name of nothing": made(header={"kid": "a" * 9000}),
    "cut off": proof()[:-1],
    "no proof": "a.b.c",
    "no ASCII": "ä",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_invalid_dpop_proof_is_refused_and_not_stored(bad: str) -> None:
    gate = gate_of()
    refusal = await refused(gate, proven(bad))
    assert (refusal.status, errors(refusal)["dpop"]) == (HTTPStatus.UNAUTHORIZED, "invalid_dpop_proof")
    assert await let_in(gate, proven(made()))


@pytest.mark.parametrize(
    ("key", "algorithm"), [(rsa_key(), "RS256"), (rsa_key(), "PS256"), (okp_key(), "Ed25519"), (ec_key(), "ES256")]
)
async def test_dpop_proof_keys_of_several_types_are_accepted(key: Any, algorithm: str) -> None:
    verifier = Verifier(bound=anna(key_thumbprint=key.thumbprint()))
    gate = protected(verifier, dpop="required")._gate(now=lambda: NOW)
    assert await let_in(gate, proven(made(key, {"alg": algorithm})))


async def test_hmac_secret_is_not_accepted_as_a_dpop_key() -> None:
    from joserfc.jwk import OctKey

    key = OctKey.import_key({"kty": "oct", "k": jwk(rsa_key())["n"]})
    gate = protected(Verifier(bound=anna(key_thumbprint=key.thumbprint())), dpop="required")._gate(now=lambda: NOW)
    head = proven(made(key, {"alg": "HS256", "jwk": key.as_dict(private=True)}))
    assert errors(await refused(gate, head)) == {"dpop": "invalid_dpop_proof"}


async def test_dpop_proof_with_another_key_is_refused_even_if_the_bound_key_is_cached() -> None:
    gate = gate_of()
    await let_in(gate, proven(proof()))
    for bad in (proof(OTHER), BAD["with the key of somebody else"], BAD["with a private key"]):
        assert errors(await refused(gate, proven(bad)))["dpop"] == "invalid_dpop_proof"
    assert await let_in(gate, proven(proof()))


async def test_dpop_clients_are_accepted_even_if_the_server_caches_fewer_keys_than_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_mcp.auth.resource_server.proof_checks._MOST_KEYS", 2)
    keys = {name: ProofKey.generate() for name in "abc"}
    verifier = Verifier(**{name: anna(key_thumbprint=key.thumbprint) for name, key in keys.items()})
    gate = protected(verifier, dpop="required")._gate(now=lambda: NOW)
    for _ in range(2):
        for name, key in keys.items():
            assert await let_in(gate, proven(proof(key, token=name), name))


# Replays


async def test_dpop_proof_cannot_be_reused_while_it_is_valid() -> None:
    clock = Clock()
    gate, head = gate_of(now=clock), proven(proof(now=NOW + 60))
    await let_in(gate, head)
    for _ in range(120):
        clock.now += 1
        assert isinstance(await asked(gate, head), Refusal)


def digest(number: int) -> bytes:
    return number.to_bytes(32)


def test_dpop_replay_guard_removes_expired_proofs() -> None:
    seen = ProofReplayGuard(1000)
    for number in range(400):
        assert seen.add("a", digest(number), ends_at=number + 60, now=number)
        assert len(seen) <= 62
    assert not seen.add("a", digest(399), ends_at=460, now=400)


def test_one_principal_can_fill_at_most_half_of_the_dpop_replay_guard() -> None:
    seen = ProofReplayGuard(100)
    with pytest.raises(TooManyProofs):
        for number in range(100):
            seen.add("greedy", digest(number), ends_at=60, now=0)
    assert len(seen) == 50
    for number in range(25):
        assert seen.add("modest", digest(100 + number), ends_at=60, now=0)
    assert not seen.add("greedy", digest(0), ends_at=60, now=0), "nothing was forgotten for that"


async def test_dpop_replay_guard_limit_applies_to_the_proofs_of_all_keys_of_a_principal_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_mcp.auth.resource_server.proof_checks._MOST_PROOFS", 4)
    tokens = {"bound": anna(key_thumbprint=KEY.thumbprint), "other": anna(key_thumbprint=OTHER.thumbprint)}
    tokens["bob"] = Principal(issuer="https://a.example", subject="bob", key_thumbprint=KEY.thumbprint)
    gate = protected(Verifier(**tokens), dpop="accepted")._gate(now=lambda: NOW)
    await let_in(gate, proven(proof()))
    await let_in(gate, proven(proof(OTHER, token="other"), "other"))
    assert (await refused(gate, proven(proof(OTHER, token="other"), "other"))).status == 503
    await let_in(gate, proven(proof(token="bob"), "bob"))


def test_dpop_replay_guard_frees_the_space_of_a_principal_after_its_proofs_expire() -> None:
    seen = ProofReplayGuard(10)
    for number in range(5):
        seen.add("a", digest(number), ends_at=60, now=0)
    with pytest.raises(TooManyProofs):
        seen.add("a", digest(5), ends_at=60, now=0)
    assert seen.add("a", digest(5), ends_at=121, now=61)
    assert len(seen) == 1


def test_expired_proofs_do_not_count_towards_the_limit_of_the_dpop_replay_guard() -> None:
    seen = ProofReplayGuard(10)
    for number in range(5):
        seen.add("a", digest(number), ends_at=60 if number < 3 else 100, now=0)
    with pytest.raises(TooManyProofs):
        for number in range(5, 15):
            seen.add("a", digest(number), ends_at=121, now=61)
    assert len(seen) == 5


async def test_client_with_too_many_dpop_proofs_gets_503_with_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_mcp.auth.resource_server.proof_checks._MOST_PROOFS", 2)
    gate = gate_of()
    await let_in(gate, proven(proof()))
    refusal = await refused(gate, proven(proof()))
    assert (refusal.status, dict(refusal.headers)) == (HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"})


# Nonces


async def test_dpop_proof_without_a_required_nonce_is_refused_and_the_response_contains_a_nonce() -> None:
    gate = gate_of(dpop_nonces=True)
    refusal = await refused(gate, proven(proof()))
    assert (refusal.status, errors(refusal)["dpop"]) == (HTTPStatus.UNAUTHORIZED, "use_dpop_nonce")
    nonce = dict(refusal.headers)["DPoP-Nonce"]
    assert await let_in(gate, proven(proof(nonce=nonce)))
    assert await let_in(gate, proven(proof(nonce=nonce))), "a nonce is good for several proofs"


async def test_client_clock_is_ignored_if_the_dpop_proof_has_a_nonce() -> None:
    gate = gate_of(dpop_nonces=True)
    nonce = dict((await refused(gate, proven(proof()))).headers)["DPoP-Nonce"]
    head = proven(proof(nonce=nonce, now=12))
    assert await let_in(gate, head)
    assert (await refused(gate, head)).reason == "the DPoP proof was used before"


async def test_dpop_nonce_is_valid_for_five_minutes_in_which_its_proofs_cannot_be_reused() -> None:
    clock = Clock()
    gate = gate_of(now=clock, dpop_nonces=True)
    nonce = dict((await refused(gate, proven(proof()))).headers)["DPoP-Nonce"]
    head = proven(proof(nonce=nonce))
    await let_in(gate, head)
    clock.now += 299
    assert errors(await refused(gate, head))["dpop"] == "invalid_dpop_proof"
    assert await let_in(gate, proven(proof(nonce=nonce)))
    clock.now += 1
    refusal = await refused(gate, proven(proof(nonce=nonce)))
    assert errors(refusal)["dpop"] == "use_dpop_nonce"
    assert dict(refusal.headers)["DPoP-Nonce"] != nonce


@pytest.mark.parametrize("nonce", ["", "abc", "A" * 32, "ä" * 32, "A" * 31 + "!", 7])
async def test_dpop_nonce_not_issued_by_the_server_is_refused(nonce: Any) -> None:
    gate = gate_of(dpop_nonces=True)
    assert errors(await refused(gate, proven(made(claims={"nonce": nonce}))))["dpop"] == "use_dpop_nonce"


def test_dpop_nonce_with_a_changed_time_is_refused() -> None:
    nonces = ProofNonces(None)
    nonce = nonces.make(NOW)
    assert nonces.ends_at(nonce) == NOW + 300
    others = [nonce[:place] + ("A" if nonce[place] != "A" else "B") + nonce[place + 1 :] for place in range(len(nonce))]
    assert [nonces.ends_at(other) for other in others] == [None] * len(nonce)


def test_dpop_nonces_are_valid_in_all_processes_with_the_same_secret() -> None:
    nonce = ProofNonces(b"a" * 32).make(NOW)
    assert ProofNonces(b"a" * 32).ends_at(nonce) is not None
    assert ProofNonces(b"b" * 32).ends_at(nonce) is None


async def test_dpop_nonce_secret_can_be_configured() -> None:
    one, other = (gate_of(dpop_nonces=b"a" * 32) for _ in range(2))
    nonce = dict((await refused(one, proven(proof()))).headers)["DPoP-Nonce"]
    assert isinstance(await asked(other, proven(proof(nonce=nonce))), Auth)


def test_short_dpop_nonce_secret_raises_value_error() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        gate_of(dpop_nonces=b"short")


def test_repr_of_protection_options_hides_the_dpop_nonce_secret() -> None:
    assert "aaaa" not in repr(protected(dpop_nonces=b"a" * 32))


def test_unknown_value_of_the_dpop_option_raises_value_error() -> None:
    with pytest.raises(ValueError, match="dpop"):
        gate_of("on")


class Away:
    """A set of seen proofs that cannot be reached."""

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        raise StoreDown("away")


async def replicas(count: int = 2, **more: Any) -> list[Gate]:
    gates = [gate_of(**more) for _ in range(count)]
    async with MemoryStorage().join("server") as replica:
        for gate in gates:
            gate.share(replica.replay_guard, replica.secret)
    return gates


async def test_dpop_proof_can_be_used_only_once_across_replicas() -> None:
    one, two = await replicas()
    head = proven(proof())
    await let_in(one, head)
    for gate in (one, two):
        refusal = await refused(gate, head)
        assert (refusal.status, refusal.reason) == (HTTPStatus.UNAUTHORIZED, "the DPoP proof was used before")
    await let_in(two, proven(proof()))


async def test_replicas_call_on_authenticated_only_after_the_dpop_proof_is_valid() -> None:
    looked = list[str]()

    async def on_authenticated(principal: Principal, headers: Mapping[str, str]) -> Mapping[str, Any]:
        looked.append("up")
        return {}

    one, two = await replicas(on_authenticated=on_authenticated)
    head = proven(proof())
    await let_in(one, head)
    await refused(two, head)
    assert looked == ["up"]


async def test_replicas_store_a_used_dpop_proof_until_it_has_expired_by_the_clock_of_every_replica(
    autojump_clock: MockClock,
) -> None:
    clock = Clock()
    late = gate_of(now=lambda: clock.now - 59)  # its clock is slow
    one = gate_of(now=clock)
    async with MemoryStorage().join("server") as replica:
        for gate in (one, late):
            gate.share(replica.replay_guard, replica.secret)
    head = proven(proof(now=clock.now))
    await let_in(one, head)
    await trio.sleep(118)
    clock.now += 118
    assert (await refused(late, head)).reason == "the DPoP proof was used before"


async def test_dpop_proofs_get_status_503_while_the_shared_storage_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trio_mcp")
    (gate,) = await replicas(1)
    gate.share(Away(), bytes(32))
    refusal = await refused(gate, proven(proof()))
    assert refusal.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert dict(refusal.headers)["Retry-After"]
    assert not caplog.records  # a client would fill the log otherwise
    assert await let_in(gate, bearing("free"))


async def test_dpop_bound_token_without_a_proof_is_refused_without_using_the_shared_storage() -> None:
    (gate,) = await replicas(1)
    gate.share(Away(), bytes(32))
    for head in (bearing("bound"), proven("nonsense")):
        assert (await refused(gate, head)).status == HTTPStatus.UNAUTHORIZED


async def test_replica_answers_a_dpop_token_without_the_required_scope_with_insufficient_scope() -> None:
    (gate,) = await replicas(1, scopes=["a"])
    assert errors(await refused(gate, proven(proof()))) == {"bearer": None, "dpop": "insufficient_scope"}


async def test_dpop_nonces_are_valid_at_all_replicas() -> None:
    one, two = await replicas(dpop_nonces=True)
    nonce = dict((await refused(one, proven(proof()))).headers)["DPoP-Nonce"]
    await let_in(two, proven(proof(nonce=nonce)))
    alone = gate_of(dpop_nonces=True)
    assert (await refused(alone, proven(proof(nonce=nonce)))).status == HTTPStatus.UNAUTHORIZED


async def test_configured_dpop_nonce_secret_is_used_with_replicas() -> None:
    (one,) = await replicas(1, dpop_nonces=bytes(32))
    other = gate_of(dpop_nonces=bytes(32))
    nonce = dict((await refused(one, proven(proof()))).headers)["DPoP-Nonce"]
    await let_in(other, proven(proof(nonce=nonce)))
