"""Registration: as which client a user signs in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    REDIRECT,
    TOKENS,
    answer,
    basic_of,
    context,
    failed,
    form_of,
    query_of,
    resource_metadata,
    settings,
    usual_web,
)

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.fetching import Fetch, Fetched
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.grants import PreregisteredClient, Visit
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization

REGISTER, TOKEN = f"{ISSUER}/register", f"{ISSUER}/token"
METADATA = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
DOCUMENT = "https://app.example/client.json"


def kept(**client: Any) -> StoredAuthorization:
    registered = RegisteredClient(**{"client_id": "kept", "redirect_uris": (REDIRECT,), **client})
    return StoredAuthorization()._with_record(ISSUER, IssuerRecord(client=registered))


def test_client_registration_request_has_all_required_fields() -> None:
    web = usual_web()
    web.run(sign_in(settings(client_name="Editor"), context()))
    sent = web.sent_to(REGISTER)
    assert sent.content_type == "application/json"
    assert sent.secrets_of is None
    assert json.loads(sent.body) == {
        "client_name": "Editor",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    }


@pytest.mark.parametrize(
    ("redirect_uri", "kind"),
    [
        ("http://127.0.0.1:1/cb", "native"),
        ("http://localhost:1/cb", "native"),
        ("http://[::1]:1/cb", "native"),
        ("https://app.example/cb", "web"),
    ],
)
def test_registered_application_type_depends_on_the_redirect_uri(redirect_uri: str, kind: str) -> None:
    web = usual_web()
    web.run(sign_in(settings(redirect_uri=redirect_uri), context()))
    assert json.loads(web.sent_to(REGISTER).body)["application_type"] == kind


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        (None, "read write"),
        (["read", "write", "offline_access"], "read offline_access write"),
        (["read"], "read"),
        (["write"], None),
        ([], None),
    ],
    ids=["nothing is listed", "all", "no others of the resource", "not what is asked for", "an empty list"],
)
def test_client_registers_the_scopes_of_the_challenge_if_the_server_lists_scopes(
    listed: list[str] | None, named: str | None
) -> None:
    web = usual_web(scopes_supported=listed)
    web.answers[METADATA] = answer(resource_metadata(scopes_supported=["read", "write"]))
    web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "read"}))))
    assert json.loads(web.sent_to(REGISTER).body).get("scope") == named
    assert "read" in web.visited["scope"].split()


@pytest.mark.parametrize(
    ("scopes", "registers"),
    [(None, False), (("read", "write"), False), (("read",), True)],
    ids=["for any scopes", "for these scopes", "for fewer scopes"],
)
def test_client_registers_again_if_it_needs_scopes_beyond_its_registration(
    scopes: tuple[str, ...] | None, registers: bool
) -> None:
    web = usual_web()
    challenge = Challenge("bearer", {"scope": "read write", "error": "insufficient_scope"})
    web.run(sign_in(settings(), context(kept(scopes=scopes), challenge=challenge)))
    assert (REGISTER in web.asked) is registers
    assert web.visited["scope"] == "read write"


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        ({}, None),
        ({"scope": None}, None),
        ({"scope": "read"}, ("read",)),
        ({"scope": "read more"}, ("read", "more")),
        ({"scope": ["read"]}, ("read",)),
    ],
)
def test_client_stores_its_registration_with_the_scopes_in_the_registration_response(
    answered: dict[str, object], expected: tuple[str, ...] | None
) -> None:
    web = usual_web()
    web.answers[REGISTER] = answer({"client_id": "c", **answered}, 201)
    grant = web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "read"}))))
    assert grant.record.client is not None
    assert grant.record.client.scopes == expected


def test_client_does_not_register_again_for_scopes_that_an_earlier_registration_response_omitted() -> None:
    challenge = Challenge("bearer", {"scope": "read write"})
    web = usual_web()
    web.answers[REGISTER] = answer({"client_id": "c", "scope": "read"}, 201)
    grant = web.run(sign_in(settings(), context(challenge=challenge)))
    again = usual_web()
    again.run(
        sign_in(
            settings(), context(StoredAuthorization()._with_record(grant.issuer, grant.record), challenge=challenge)
        )
    )
    assert REGISTER not in again.asked


def test_client_with_refresh_disabled_registers_only_the_authorization_code_grant() -> None:
    web = usual_web()
    web.run(sign_in(settings(refresh=False), context()))
    assert json.loads(web.sent_to(REGISTER).body)["grant_types"] == ["authorization_code"]


@pytest.mark.parametrize(
    ("supported", "wanted"),
    [
        (["none"], "none"),
        (["client_secret_post", "none"], "none"),
        (["client_secret_basic", "client_secret_post"], "client_secret_post"),
        (["client_secret_basic"], "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["private_key_jwt"], "none"),
        (None, "client_secret_basic"),
    ],
)
def test_client_registers_the_best_supported_token_endpoint_auth_method(
    supported: list[str] | None, wanted: str
) -> None:
    web = usual_web(token_endpoint_auth_methods_supported=supported)
    web.run(sign_in(settings(), context()))
    assert json.loads(web.sent_to(REGISTER).body)["token_endpoint_auth_method"] == wanted


SECRET = "s3cret: +/%"


@pytest.mark.parametrize(
    ("supported", "answered", "used"),
    [
        ("client_secret_basic", {"client_secret": SECRET}, "client_secret_basic"),
        ("client_secret_post", {"client_secret": SECRET}, "client_secret_post"),
        ("none", {"client_secret": SECRET}, "client_secret_basic"),
        ("none", {"client_secret": SECRET, "token_endpoint_auth_method": ""}, "client_secret_basic"),
        ("none client_secret_post client_secret_basic", {"client_secret": SECRET}, "client_secret_basic"),
        ("none client_secret_post", {"client_secret": SECRET}, "client_secret_post"),
        ("none", {"client_secret": SECRET, "token_endpoint_auth_method": "none"}, "none"),
        ("client_secret_basic", {"client_secret": ""}, "none"),
        ("none", {"client_secret": SECRET, "token_endpoint_auth_method": "client_secret_post"}, "client_secret_post"),
        ("client_secret_basic", {"token_endpoint_auth_method": "none"}, "none"),
        ("client_secret_basic", {}, "none"),
    ],
)
def test_client_authenticates_to_the_token_endpoint_with_the_method_in_its_registration(
    supported: str, answered: dict[str, str], used: str
) -> None:
    web = usual_web(token_endpoint_auth_methods_supported=supported.split())
    web.answers[REGISTER] = answer({"client_id": "id:é", **answered}, 201)
    web.run(sign_in(settings(), context()))
    sent = web.sent_to(TOKEN)
    form = form_of(sent)
    if used == "client_secret_basic":
        assert basic_of(sent) == ("id:é", SECRET)
        assert "client_id" not in form
        assert "client_secret" not in form
    else:
        assert "authorization" not in dict(sent.headers)
        assert form["client_id"] == "id:é"
        assert form.get("client_secret") == (SECRET if used == "client_secret_post" else None)


def test_client_registration_is_stored_with_the_client_secret_and_its_expiry_time() -> None:
    web = usual_web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    answered = {"client_id": "c", "client_secret": SECRET, "client_secret_expires_at": NOW + 60}
    web.answers[REGISTER] = answer(answered, 201)
    assert web.run(sign_in(settings(), context())).record.client == RegisteredClient(
        client_id="c",
        client_secret=SECRET,
        secret_expires_at=NOW + 60,
        auth_method="client_secret_basic",
        redirect_uris=(REDIRECT,),
    )


def test_client_secret_with_expiry_zero_never_expires() -> None:
    web = usual_web()
    web.answers[REGISTER] = answer({"client_id": "c", "client_secret": SECRET, "client_secret_expires_at": 0}, 201)
    record = web.run(sign_in(settings(), context())).record
    assert record.client is not None
    assert record.client.secret_expires_at is None


@pytest.mark.parametrize(
    ("changes", "registers"),
    [
        ({}, False),
        ({"client_secret": SECRET, "secret_expires_at": NOW + 1}, False),
        ({"client_secret": SECRET, "secret_expires_at": NOW}, True),
        ({"redirect_uris": ("http://127.0.0.1:1/other",)}, True),
        ({"redirect_uris": ()}, True),
    ],
    ids=["good", "secret good", "secret over", "other redirect", "not registered by itself"],
)
def test_stored_client_registration_is_reused_while_valid(changes: dict[str, Any], registers: bool) -> None:
    web = usual_web()
    web.run(sign_in(settings(), context(kept(**changes))))
    assert (REGISTER in web.asked) is registers
    assert web.visited["client_id"] == ("client-1" if registers else "kept")


def test_preregistered_client_takes_precedence_over_a_stored_client_registration() -> None:
    web = usual_web(client_id_metadata_document_supported=True)
    client = PreregisteredClient(client_id="known", issuer=ISSUER)
    grant = web.run(sign_in(settings(client=client, client_metadata_url=DOCUMENT), context(kept())))
    assert web.visited["client_id"] == "known"
    assert REGISTER not in web.asked
    assert grant.record.client == RegisteredClient(client_id="known")


def test_client_metadata_document_takes_precedence_over_registration() -> None:
    web = usual_web(client_id_metadata_document_supported=True)
    grant = web.run(sign_in(settings(client_metadata_url=DOCUMENT), context(kept())))
    assert web.visited["client_id"] == DOCUMENT
    assert form_of(web.sent_to(TOKEN))["client_id"] == DOCUMENT
    assert REGISTER not in web.asked
    assert grant.record.client == RegisteredClient(client_id=DOCUMENT)


@pytest.mark.parametrize("supported", [None, False])
def test_client_registers_if_the_server_supports_no_metadata_documents(supported: bool | None) -> None:
    web = usual_web(client_id_metadata_document_supported=supported)
    web.run(sign_in(settings(client_metadata_url=DOCUMENT), context()))
    assert web.visited["client_id"] == "client-1"


@pytest.mark.parametrize("url", ["http://app.example/client.json", "https://app.example", "https://app.example/"])
def test_invalid_client_metadata_url_raises_authorization_error(url: str) -> None:
    web = usual_web(client_id_metadata_document_supported=True)
    with pytest.raises(AuthorizationError, match="client_metadata_url must be an https URL with a path"):
        web.run(sign_in(settings(client_metadata_url=url), context()))


@pytest.mark.parametrize("endpoint", [None, ""])
def test_client_raises_an_error_with_instructions_if_the_server_has_no_dynamic_registration(
    endpoint: str | None,
) -> None:
    web = usual_web(registration_endpoint=endpoint)
    with pytest.raises(AuthorizationError, match="get a client id from its administrators"):
        web.run(sign_in(settings(), context()))


def test_preregistered_credentials_of_another_issuer_raise_authorization_error() -> None:
    web = usual_web()
    client = PreregisteredClient(client_id="known", client_secret=SECRET, issuer="https://honest.example")
    with pytest.raises(AuthorizationError, match="credentials of this client belong to"):
        web.run(sign_in(settings(client=client), context()))


def test_dynamic_registration_does_not_affect_preregistered_credentials() -> None:
    stored = StoredAuthorization()._with_record(
        "https://evil.example", IssuerRecord(client=RegisteredClient(client_id="known", redirect_uris=(REDIRECT,)))
    )
    web = usual_web()
    web.run(sign_in(settings(client=PreregisteredClient(client_id="known")), context(stored)))
    assert web.visited["client_id"] == "known"


@pytest.mark.parametrize(
    ("supported", "client", "used"),
    [
        (["client_secret_post"], {"client_secret": SECRET}, "client_secret_post"),
        (["client_secret_basic", "client_secret_post"], {"client_secret": SECRET}, "client_secret_post"),
        (None, {"client_secret": SECRET}, "client_secret_basic"),
        (["private_key_jwt"], {"client_secret": SECRET}, "client_secret_basic"),
        (["client_secret_basic"], {"client_secret": SECRET, "auth_method": "client_secret_post"}, "client_secret_post"),
        (["client_secret_basic"], {}, "none"),
    ],
)
def test_preregistered_client_uses_the_best_supported_token_endpoint_auth_method(
    supported: list[str] | None, client: dict[str, Any], used: str
) -> None:
    web = usual_web(token_endpoint_auth_methods_supported=supported)
    web.run(sign_in(settings(client=PreregisteredClient(client_id="known", **client)), context()))
    sent = web.sent_to(TOKEN)
    assert ("authorization" in dict(sent.headers)) is (used == "client_secret_basic")
    assert ("client_secret" in form_of(sent)) is (used == "client_secret_post")


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "private_key_jwt"])
def test_token_endpoint_auth_method_without_its_credentials_raises_authorization_error(method: Any) -> None:
    web = usual_web()
    with pytest.raises(AuthorizationError, match=f"{method} needs the"):
        web.run(sign_in(settings(client=PreregisteredClient(client_id="c", auth_method=method)), context()))


@pytest.mark.parametrize(
    ("answered", "words", "code"),
    [
        (answer({"error": "invalid_redirect_uri"}, 400), "invalid_redirect_uri", "invalid_redirect_uri"),
        (answer({"error": "invalid_client_metadata"}, 200), "invalid_client_metadata", "invalid_client_metadata"),
        (answer({"error": "s3cret"}, 400), "an unknown error", None),
        (answer({"error": "client_limit_reached"}, 429), "client_limit_reached", None),
        (answer(b"<html>", 500), "status 500", None),
        (answer(b"<html>", 201), "an unknown error", None),
        (answer({"client_id": 7.5}, 201), "an unknown error", None),
        (answer({"client_id": ""}, 201), "returned no client_id", None),
        (failed, "could not be registered", None),
    ],
)
def test_error_for_a_rejected_client_registration_does_not_quote_the_response(
    answered: Any, words: str, code: str | None
) -> None:
    web = usual_web()
    web.answers[REGISTER] = answered
    with pytest.raises(AuthorizationError, match=words) as caught:
        web.run(sign_in(settings(), context()))
    assert caught.value.code == code
    assert "s3cret" not in str(caught.value)
    assert web.asked[-1] == REGISTER


def forgetting(client_id: str) -> Any:
    """A token endpoint that has forgotten one client."""

    def token(fetch: Fetch) -> Fetched:
        return answer({"error": "invalid_client"}, 401) if form_of(fetch)["client_id"] == client_id else answer(TOKENS)

    return token


def test_stored_client_registration_rejected_by_the_authorization_server_is_replaced_once() -> None:
    web = usual_web()
    web.answers[TOKEN] = forgetting("kept")
    grant = web.run(sign_in(settings(), context(kept())))
    assert grant.record.client is not None
    assert grant.record.client.client_id == "client-1"
    assert web.asked[-3:] == [TOKEN, REGISTER, TOKEN]
    first, second = [step.url for step in web.steps if isinstance(step, Visit)]
    assert query_of(first)["state"] != query_of(second)["state"]


@pytest.mark.parametrize(
    ("stored", "said"), [(StoredAuthorization(), {}), (kept(), {"client": PreregisteredClient(client_id="client-1")})]
)
def test_new_or_preregistered_client_rejected_by_the_authorization_server_is_not_registered_again(
    stored: StoredAuthorization, said: dict[str, Any]
) -> None:
    web = usual_web()
    web.answers[TOKEN] = forgetting("client-1")
    with pytest.raises(AuthorizationError, match="invalid_client") as caught:
        web.run(sign_in(settings(**said), context(stored)))
    assert caught.value.code == "invalid_client"
    assert web.asked.count(TOKEN) == 1
