"""When the keys of an issuer are asked for, and what holds while it does not answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.auth import JWTVerifier, VerifierUnavailable
from trio_mcp.auth.fetching import FetchFailed

from .asking import ISSUER, NOW, RESOURCE
from .minting import Network, ec_key, jwk, minted

METADATA = f"{ISSUER}/.well-known/oauth-authorization-server"
KEYS = f"{ISSUER}/keys"


@pytest.fixture
def network() -> Network:
    network = Network()
    network.publish(jwk(ec_key(1), kid="1"))
    return network


def verifier(network: Network, issuer: str = ISSUER, **options: Any) -> Any:
    return JWTVerifier(_fetcher=network, **options)._at(RESOURCE, (issuer,), lambda: NOW)


def unknown(number: int) -> str:
    """A token whose key nobody knows."""
    return minted(ec_key(9), header={"kid": f"unknown-{number}"})


async def test_jwks_uri_is_found_in_the_issuer_metadata_and_fetched_once(network: Network) -> None:
    jwt = verifier(network)
    assert [await jwt.verify(minted(jti=str(number))) is not None for number in range(3)] == [True] * 3
    assert network.asked == [METADATA, KEYS]


async def test_token_of_an_unknown_issuer_fetches_no_jwks(network: Network) -> None:
    jwt = verifier(network)
    for token in (minted(iss="https://evil.example"), "text"):
        assert await jwt.verify(token) is None
    assert network.asked == []


async def test_invalid_tokens_cause_no_additional_jwks_requests(network: Network) -> None:
    jwt = verifier(network)
    for token in (minted(exp=NOW - 100), minted(aud="other"), minted(ec_key(2), aud="other"), minted(ec_key(2))):
        assert await jwt.verify(token) is None
    assert network.asked == [METADATA, KEYS]


async def test_configured_jwks_uri_is_fetched_without_discovery(network: Network) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    assert network.asked == [KEYS]


async def test_metadata_of_an_issuer_with_a_path_is_requested_at_three_urls() -> None:
    issuer, network = f"{ISSUER}/realms/one", Network()
    with pytest.raises(VerifierUnavailable):
        await verifier(network, issuer).verify(minted(iss=issuer))
    assert network.asked == [
        f"{ISSUER}/.well-known/oauth-authorization-server/realms/one",
        f"{ISSUER}/.well-known/openid-configuration/realms/one",
        f"{ISSUER}/realms/one/.well-known/openid-configuration",
    ]


async def test_jwks_uri_is_read_from_openid_configuration(network: Network) -> None:
    network.answers[f"{ISSUER}/.well-known/openid-configuration"] = network.answers[METADATA]
    network.answers[METADATA] = b"<html>for people</html>"
    assert await verifier(network).verify(minted())


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": f"{ISSUER}/", "jwks_uri": KEYS},
        {"jwks_uri": KEYS},
        {"issuer": ISSUER},
        [],
        b"{",
        {"issuer": ISSUER, "jwks_uri": 7},
    ],
    ids=str,
)
async def test_metadata_of_another_issuer_is_not_used_for_jwks(network: Network, document: Any) -> None:
    network.answers[METADATA] = document
    with pytest.raises(VerifierUnavailable):
        await verifier(network).verify(minted())


async def test_jwks_uri_with_plain_http_in_metadata_is_logged_with_instructions(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    network.answers[METADATA] = {"issuer": ISSUER, "jwks_uri": "http://keycloak:8080/certs"}
    network.answers["http://keycloak:8080/certs"] = FetchFailed("only https is allowed")
    with pytest.raises(VerifierUnavailable):
        await verifier(network).verify(minted())
    assert "'http://keycloak:8080/certs'. Or pass the key set itself: JWTVerifier(keys=...)" in caplog.text


async def test_jwt_with_an_unknown_key_id_triggers_a_jwks_fetch(network: Network, autojump_clock: MockClock) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    network.publish(jwk(ec_key(1), kid="1"), jwk(ec_key(2), kid="2"))
    await trio.sleep(31)
    assert await jwt.verify(minted(ec_key(2), header={"kid": "2"}))
    assert await jwt.verify(minted())
    assert network.asked == [KEYS, KEYS]


@pytest.mark.parametrize("kid", [None, "1"])
async def test_jwks_keys_without_key_ids_are_accepted(
    network: Network, kid: str | None, autojump_clock: MockClock
) -> None:
    network.publish(jwk(ec_key(1)))
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted(header={"kid": kid}))
    network.publish(jwk(ec_key(2)))
    await trio.sleep(31)
    assert await jwt.verify(minted(ec_key(2), header={"kid": kid}))
    assert await jwt.verify(minted(header={"kid": kid})) is None


async def test_tokens_with_unknown_key_ids_trigger_at_most_one_jwks_fetch_in_half_a_minute(
    network: Network, autojump_clock: MockClock
) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    for number in range(100):
        assert await jwt.verify(unknown(number)) is None
        await trio.sleep(1)
    assert len(network.asked) == 1 + 3


async def test_jwt_with_an_invalid_signature_and_known_key_id_triggers_no_jwks_fetch(
    network: Network, autojump_clock: MockClock
) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    await trio.sleep(31)
    assert await jwt.verify(minted(ec_key(9))) is None
    assert len(network.asked) == 1


async def test_cached_jwks_is_refreshed_after_ten_minutes(network: Network, autojump_clock: MockClock) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    network.publish(jwk(ec_key(2), kid="2"))
    await trio.sleep(599)
    assert await jwt.verify(minted(jti="2"))
    await trio.sleep(1)
    assert await jwt.verify(minted()) is None, "the issuer has withdrawn the key"
    assert len(network.asked) == 2


async def test_cached_jwks_is_used_while_a_new_jwks_is_fetched(
    network: Network, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    network.before_answer = trio.sleep_forever
    await trio.sleep(600)
    nursery.start_soon(jwt.verify, minted())
    await wait_all_tasks_blocked()
    before = trio.current_time()
    assert await jwt.verify(minted(jti="2"))
    assert trio.current_time() == before
    assert len(network.asked) == 2


async def test_cached_jwks_stays_valid_while_the_issuer_is_unavailable(
    network: Network, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    network.is_down()
    for _ in range(10):
        await trio.sleep(300)
        assert await jwt.verify(minted())
    assert f"the keys of {ISSUER} cannot be fetched: refused" in caplog.messages


async def test_jwt_with_an_unknown_key_id_raises_verifier_unavailable_while_the_issuer_is_down(
    network: Network, autojump_clock: MockClock
) -> None:
    jwt = verifier(network, jwks_uri=KEYS)
    assert await jwt.verify(minted())
    network.is_down()
    await trio.sleep(31)
    with pytest.raises(VerifierUnavailable):
        await jwt.verify(minted(ec_key(2), header={"kid": "2"}))
    with pytest.raises(VerifierUnavailable):
        await jwt.verify(minted(ec_key(3), header={"kid": "3"}))
    assert len(network.asked) == 2


async def test_jwks_fetch_is_retried_every_five_seconds_while_it_fails(
    network: Network, autojump_clock: MockClock
) -> None:
    answers = dict(network.answers)
    jwt = verifier(network, jwks_uri=KEYS)
    network.is_down()
    for _ in range(11):
        with pytest.raises(VerifierUnavailable):
            await jwt.verify(minted())
        await trio.sleep(1)
    assert len(network.asked) == 3
    network.answers = answers
    await trio.sleep(5)
    assert await jwt.verify(minted())


async def test_concurrent_requests_cause_one_jwks_fetch(network: Network) -> None:
    go, found = trio.Event(), list[bool]()
    network.before_answer = go.wait
    jwt = verifier(network, jwks_uri=KEYS)

    async def verify(number: int) -> None:
        found.append(await jwt.verify(minted(jti=str(number))) is not None)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(verify, number)
        await wait_all_tasks_blocked()
        go.set()
    assert (found, network.asked) == ([True] * 5, [KEYS])


async def test_cancelled_request_does_not_cancel_a_jwks_fetch_that_another_request_awaits(network: Network) -> None:
    go, found = trio.Event(), list[bool]()
    network.before_answer = go.wait
    jwt = verifier(network, jwks_uri=KEYS)
    leaving = trio.CancelScope()

    async def leave() -> None:
        with leaving:
            await jwt.verify(minted())

    async def verify() -> None:
        found.append(await jwt.verify(minted()) is not None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        nursery.start_soon(verify)
        await wait_all_tasks_blocked()
        leaving.cancel(reason="the client is gone")
        await wait_all_tasks_blocked()
        go.set()
    assert (found, network.asked) == ([True], [KEYS])


async def test_jwks_fetch_times_out_after_ten_seconds(
    network: Network, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network.before_answer = trio.sleep_forever
    with pytest.raises(VerifierUnavailable):
        await verifier(network).verify(minted())
    assert trio.current_time() == pytest.approx(10)
    assert "no answer within 10 s" in caplog.text


@pytest.mark.parametrize("keys", [b"", b"{}", {"keys": []}, FetchFailed("no route")])
async def test_invalid_jwks_raises_verifier_unavailable(network: Network, keys: Any) -> None:
    network.answers[KEYS] = keys
    with pytest.raises(VerifierUnavailable):
        await verifier(network).verify(minted())


async def test_verifier_fetches_a_jwks_from_a_real_http_server(nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        target = (await stream.receive_some(4096)).split()[1].decode()
        body = json.dumps(network.answers[f"{ISSUER}{target}"]).replace(ISSUER, issuer).encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await stream.aclose()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    issuer = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    network = Network()
    network.publish(jwk(ec_key(1), kid="1"))
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    assert await JWTVerifier()._at(RESOURCE, (issuer,), lambda: NOW).verify(minted(iss=issuer))
