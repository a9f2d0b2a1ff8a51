"""Whatever hostile servers answer, a secret goes to the issuer that it belongs to, or nowhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey
from tests.auth.oauth_client.hostile_web import ISSUERS, MOST_STEPS, REDIRECT, HostileWeb
from tests.auth.oauth_client.scripted_web import context, usual_web
from tests.examples import examples

from trio_mcp.auth.credentials import AuthorizationError
from trio_mcp.auth.fetching import Fetched
from trio_mcp.auth.oauth_client.authorization_code import OAuth, OAuthSettings, refresh, sign_in
from trio_mcp.auth.oauth_client.grants import (
    Grant,
    Machine,
    PreregisteredClient,
)
from trio_mcp.auth.oauth_client.machine_clients import (
    EnterpriseManaged,
    WorkloadIdentity,
    client_credentials,
    enterprise_managed,
    workload_identity,
)
from trio_mcp.auth.storage.records import RegisteredClient

KEY = ECKey.generate_key("P-256").as_dict(private=True)
IDP = "https://idp.example"


class Proofs:
    def proof(self, method: str, url: str, *, nonce: str | None = None, now: float) -> str:
        return f"{method} {url} {nonce}"


def client_of(web: HostileWeb) -> PreregisteredClient:
    """A client of one issuer, or of the first that is named."""
    issuer = web.choose((None, ISSUERS[0], ISSUERS[2]))
    owner = issuer or "*"
    client_id = web.client_id(owner)
    if issuer is None and web.choose((True, False)):
        # One issuer has seen the client already, and another one has given its id to a client that registered itself.
        client_id, owner = "known", ISSUERS[0]
        web.registered = {
            ISSUERS[1]: RegisteredClient(client_id=client_id, redirect_uris=(REDIRECT,)),
            ISSUERS[0]: RegisteredClient(client_id=client_id),
        }
    return PreregisteredClient(
        client_id=client_id,
        issuer=issuer,
        **web.choose(
            (
                {},
                {"client_secret": web.secret(owner)},
                {"client_secret": web.secret(owner), "auth_method": "client_secret_post"},
                {"private_key": KEY},
                {"private_key": "broken"},
                {"auth_method": "client_secret_basic"},
            )
        ),
    )


def a_sign_in(web: HostileWeb) -> Machine[Grant]:
    client = web.choose((None, None, client_of(web)))
    said = OAuth(
        client_metadata_url=web.choose((None, "https://app.example/client.json", "http://app.example")),
        scopes=web.choose((None, ("mine",))),
    )
    settings = OAuthSettings(auth=said, redirect_uri=REDIRECT, client=client)
    return sign_in(settings, web.context(web.choose((None, Proofs()))))


def a_refresh(web: HostileWeb) -> Machine[Grant]:
    web.endpoints.add(("https://mcp.example", "https://mcp.example/token"))
    return refresh(OAuthSettings(redirect_uri=REDIRECT), web.context(web.choose((None, Proofs()))))


def a_program(web: HostileWeb) -> Machine[Grant]:
    return client_credentials(client_of(web), web.context())


def a_workload(web: HostileWeb) -> Machine[Grant]:
    issuer = web.choose(ISSUERS[:5])
    named = web.choose((None, issuer))
    said = WorkloadIdentity(
        assertion=web.assertion(issuer) if named is None else web.secret(issuer),
        client_id=web.choose((None, web.client_id("*"))),
        issuer=named,
    )
    return workload_identity(said, web.context())


def an_employee(web: HostileWeb) -> Machine[Grant]:
    endpoint = web.choose((None, f"{IDP}/own/token"))
    if endpoint is not None:
        web.endpoints.add((IDP, endpoint))
    said = EnterpriseManaged(
        idp_issuer=IDP,
        idp_token_endpoint=endpoint,
        idp_client=PreregisteredClient(client_id=web.client_id(IDP), client_secret=web.secret(IDP)),
        subject_token=web.secret(IDP),
        client=PreregisteredClient(
            client_id=web.client_id(ISSUERS[0]), client_secret=web.secret(ISSUERS[0]), issuer=ISSUERS[0]
        ),
    )
    return enterprise_managed(said, web.context())


WAYS = (a_sign_in, a_refresh, a_program, a_workload, an_employee)


def go(web: HostileWeb, way: Callable[[HostileWeb], Machine[Grant]]) -> str:
    """Go the whole way, and return how it ended. All claims are in the web."""
    web.endpoints.add(("https://mcp.example", "https://mcp.example/token"))  # 2025-03-26
    end = web.run(way(web))
    return "granted" if isinstance(end, Grant) else str(end)


@pytest.mark.parametrize("way", WAYS)
@given(st.data())
@settings(max_examples=examples(100), derandomize=True)
def test_secret_is_sent_only_to_the_authorization_server_it_belongs_to(
    way: Callable[[HostileWeb], Machine[Grant]], data: st.DataObject
) -> None:
    go(HostileWeb(lambda options: data.draw(st.sampled_from(options))), way)


@pytest.mark.parametrize("way", WAYS)
def test_secret_is_sent_only_to_the_authorization_server_it_belongs_to_in_random_runs(
    way: Callable[[HostileWeb], Machine[Grant]],
) -> None:
    chance = random.Random(13)
    ends = Counter(go(HostileWeb(chance.choice), way) for _ in range(1500))
    assert ends["granted"] > 20, "the whole way is gone, too"
    assert len(ends) > 5


def mutated(chance: random.Random, body: bytes) -> bytes:
    """``body`` with a few bytes changed, left out, repeated, or put in."""
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed) + 1)
        piece = chance.choice((b"", b'"', b"{", b"null", b"\\ud800", b"\xff", b"https://", b"1e999", bytes([at % 256])))
        changed[at : at + chance.choice((0, 1, 1, 20))] = piece
    return bytes(changed)


def test_sign_in_with_mutated_oauth_documents_succeeds_or_raises_authorization_error() -> None:
    chance = random.Random(13)
    ends: Counter[bool] = Counter()
    for _ in range(4000):
        web = usual_web()
        url = chance.choice(list(web.answers))
        answered = web.answers[url]
        assert isinstance(answered, Fetched)
        web.answers[url] = attrs.evolve(answered, body=mutated(chance, answered.body))
        try:
            ends[web.run(sign_in(OAuthSettings(redirect_uri=REDIRECT), context())) is not None] += 1
        except AuthorizationError:
            ends[False] += 1
        assert len(web.steps) <= MOST_STEPS
    assert min(ends[True], ends[False]) > 100
