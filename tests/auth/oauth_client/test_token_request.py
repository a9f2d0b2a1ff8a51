"""Token requests: which answers are tokens, and what is told of those that are not."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    TOKENS,
    ScriptedWeb,
    answer,
    context,
    failed,
    form_of,
    settings,
    usual_web,
)

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.fetching import Fetch, Fetched
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.grants import PreregisteredClient
from trio_mcp.auth.signing import ProofKey
from trio_mcp.auth.storage.records import Tokens

TOKEN = f"{ISSUER}/token"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
YEARS = 10 * 365 * 24 * 60 * 60


def web_with(answered: Any) -> ScriptedWeb:
    web = usual_web()
    web.answers[TOKEN] = answered
    return web


def tokens_for(answered: dict[str, Any], **changes: Any) -> Tokens:
    full = {name: value for name, value in {**TOKENS, **answered}.items() if value is not None}
    challenge = Challenge("bearer", {"scope": "read write"})
    grant = web_with(answer(full)).run(sign_in(settings(), context(challenge=challenge, **changes)))
    assert grant.record.tokens is not None
    return grant.record.tokens


@pytest.mark.parametrize(
    ("seconds", "expiry"),
    [
        (3600, NOW + 3600),
        (0, NOW),
        (0.5, NOW + 0.5),
        ("3600", NOW + 3600),
        (None, None),
        (-1, None),
        (1e300, NOW + YEARS),
        (10**400, None),
        ("", None),
        ("never", None),
    ],
)
def test_client_limits_the_token_lifetime_that_a_server_states(seconds: object, expiry: float | None) -> None:
    assert tokens_for({"expires_in": seconds}).expires_at == expiry


def test_token_lifetime_starts_when_the_token_response_arrives() -> None:
    times = iter([NOW, NOW + 100, NOW + 200, NOW + 300, NOW + 400])
    web = web_with(answer({**TOKENS, "expires_in": 60}))
    last = [NOW]

    def now() -> float:
        last.append(next(times))
        return last[-1]

    grant = web.run(sign_in(settings(), attrs.evolve(context(), now=now)))
    assert grant.record.tokens is not None
    assert grant.record.tokens.expires_at == last[-1] + 60 > NOW + 60


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        (None, ("read", "write")),
        ("read", ("read",)),
        ("", ()),
        ('a "b" c', ("a", "c")),
        ("a a b", ("a", "b")),
        (["a", "b"], ("a", "b")),
    ],
)
def test_client_assumes_the_requested_scopes_if_the_token_response_has_no_scope(
    scope: str | list[str] | None, scopes: tuple[str, ...]
) -> None:
    assert tokens_for({"scope": scope}).scopes == scopes


@pytest.mark.parametrize(
    "kind", ["Bearer", "bearer", "BEARER", "Bearer ", None, "", "user", "bot", "access_token", 7, ["bearer"]]
)
def test_unregistered_token_type_is_treated_as_bearer(kind: object) -> None:
    assert tokens_for({"token_type": kind}).token_type == "Bearer"


@pytest.mark.parametrize("kind", ["N_A", "mac", "PoP", "DPoP", " dpop"])
def test_token_of_an_unrequested_type_raises_authorization_error(kind: str) -> None:
    with pytest.raises(AuthorizationError, match="of a type that was not requested"):
        tokens_for({"token_type": kind})


@pytest.mark.parametrize("token", ["", "a b", "a\r\nCookie: x", "é", "\x00", "t" * 16385])
def test_error_for_an_access_token_that_a_header_cannot_contain_does_not_quote_the_token(token: str) -> None:
    with pytest.raises(AuthorizationError, match="with characters that a header can't contain") as caught:
        tokens_for({"access_token": token})
    assert token not in str(caught.value) or not token


@pytest.mark.parametrize("token", ["", " ", "a b", "a\r\nCookie: x", "é", "\x00", "t" * 16385, 7, False, {}])
def test_refresh_token_with_invalid_characters_in_a_token_response_is_ignored(token: object) -> None:
    assert tokens_for({"refresh_token": token}).refresh_token is None


def test_exception_of_a_token_request_contains_only_the_error_code_and_issuer() -> None:
    def refusing(fetch: Fetch) -> Fetched:
        form = form_of(fetch)
        return answer({"error": "invalid_grant", "error_description": form["code_verifier"] + form["code"]}, 400)

    with pytest.raises(AuthorizationError) as caught:
        web_with(refusing).run(sign_in(settings(), context()))
    assert str(caught.value) == "the token endpoint of 'https://as.example' refused the request: invalid_grant"
    assert caught.value.code == "invalid_grant"
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    "code",
    [
        "invalid_code",
        "bad_redirect_uri",
        "Bad Request",
        "OAuthException",
        "AADSTS50011",
        "needs_2fa",
        "slack.team-x",
    ],
)
@pytest.mark.parametrize("status", [200, 400])
def test_unregistered_token_error_code_is_in_the_exception_text_but_not_in_its_code_attribute(
    code: str, status: int
) -> None:
    web = web_with(answer({"ok": False, "error": code, "error_description": ["words"]}, status))
    with pytest.raises(AuthorizationError) as caught:
        web.run(sign_in(settings(), context()))
    assert caught.value.reason == f"the token endpoint of 'https://as.example' refused the request: {code}"
    assert caught.value.code is None


@pytest.mark.parametrize(
    "code", ["visit https://evil.example", "a" * 65, "x" * 201, "\x1b[31m", "a\nb", "é", "pa$$word", "s3cret"]
)
def test_exception_does_not_quote_a_malformed_token_error(code: str) -> None:
    with pytest.raises(AuthorizationError, match=r": (an unknown error|status 400)\Z"):
        web_with(answer({"error": code}, 400)).run(sign_in(settings(), context()))


@pytest.mark.parametrize("name", ["code", "code_verifier", "client_secret"])
@pytest.mark.parametrize("text", ["{}", "bad_{}"])
def test_exception_does_not_quote_a_secret_that_the_token_endpoint_echoes(name: str, text: str) -> None:
    client = PreregisteredClient(client_id="c", client_secret="hunter", auth_method="client_secret_post")
    web = web_with(lambda fetch: answer({"error": text.format(form_of(fetch)[name])}, 400))
    web.callback = lambda query: {"code": "magic", "state": query["state"]}
    with pytest.raises(AuthorizationError, match="an unknown error") as caught:
        web.run(sign_in(settings(client=client), context()))
    assert form_of(web.sent_to(TOKEN))[name] not in repr(caught.value) + str(caught.value.code)


@pytest.mark.parametrize(
    ("answered", "words", "code"),
    [
        (answer({"error": "invalid_client"}, 401), "invalid_client", "invalid_client"),
        (answer({"error": "invalid_grant"}, 200), "invalid_grant", "invalid_grant"),
        (answer({**TOKENS, "error": "invalid_grant"}, 200), "invalid_grant", "invalid_grant"),
        (answer({"error": "server_error"}, 500), "server_error", "server_error"),
        (answer(TOKENS, 400), "status 400", None),
        (answer(b"<html>", 502), "status 502", None),
        (answer(b"", 302, {"location": "https://evil.example/token"}), "status 302", None),
        (answer(b"<html>", 200), "contains no valid token: invalid token response: not JSON in UTF-8", None),
        (answer({}, 200), "contains no valid token: .* missing required field `access_token`", None),
        (answer({"accessToken": "s3cret"}, 200), "contains no valid token: .* missing required field", None),
        (answer({"access_token": 7}, 200), "contains no valid token", None),
        (answer(b"error=bad_verification_code&error_description=words", 200, FORM), "bad_verification_code", None),
        (answer(b"error=invalid_grant", 400, FORM), "invalid_grant", "invalid_grant"),
        (answer(b"access_token=a&access_token=b", 200, FORM), "contains no valid token", None),
        (answer(b"access_token=a" + b"&x=1" * 50, 200, FORM), "contains no valid token", None),
        (answer(b"token=a", 200, FORM), "contains no valid token", None),
        (answer(b"access_token=a", 200, {"content-type": "text/html"}), "contains no valid token", None),
        *(
            (answer(quoting, 200, FORM), "contains no valid token", None)
            for quoting in (
                b'{"m":"?a=1&access_token=b&c=1"}',
                b"<p>?a=1&access_token=b&c=1</p>",
                b"a=b c&access_token=d",
            )
        ),
        (answer([], 200), "contains no valid token", None),
        (failed, "endpoint failed: nobody listens there", None),
    ],
)
def test_error_for_a_response_without_a_valid_token_does_not_quote_the_response(
    answered: Any, words: str, code: str | None
) -> None:
    web = web_with(answered)
    with pytest.raises(AuthorizationError, match=words) as caught:
        web.run(sign_in(settings(), context()))
    assert caught.value.code == code
    assert web.asked[-1] == TOKEN
    assert web.asked.count(TOKEN) == 1


@pytest.mark.parametrize(
    "written",
    [
        urlencode({**TOKENS, "expires_in": 3600}).encode(),
        json.dumps({"code": 0, "data": {**TOKENS, "expires_in": "3600"}}).encode(),
    ],
)
def test_form_encoded_or_nested_token_response_is_accepted(written: bytes) -> None:
    web = web_with(answer(written, 200, FORM))
    grant = web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "read write"}))))
    assert grant.record.tokens == tokens_for({"expires_in": 3600})


def test_sign_in_at_an_authorization_server_without_a_token_endpoint_raises_authorization_error() -> None:
    with pytest.raises(AuthorizationError, match="contains no token_endpoint"):
        usual_web(token_endpoint=None).run(sign_in(settings(), context()))


def test_repr_of_a_token_request_does_not_contain_the_authorization_code() -> None:
    web = usual_web()
    web.run(sign_in(settings(), context()))
    sent = web.sent_to(TOKEN)
    assert sent.secrets_of == ISSUER
    assert "c0de" not in repr(sent)


# DPoP (RFC 9449)


class Proofs:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []

    def proof(self, method: str, url: str, *, nonce: str | None = None, now: float) -> str:
        self.asked.append((method, url, nonce))
        return f"proof-{len(self.asked)}"


BOUND = answer({**TOKENS, "token_type": "DPoP"})


def nonce(status: int = 400, value: str = "n-1", error: str = "use_dpop_nonce") -> Fetched:
    return answer({"error": error}, status, {"dpop-nonce": value})


def in_turn(*answers: Fetched) -> Any:
    left = iter(answers)
    return lambda _: next(left)


def test_token_request_with_a_dpop_proof_gets_a_dpop_bound_token() -> None:
    web, proofs = web_with(BOUND), Proofs()
    grant = web.run(sign_in(settings(), context(proof_key=proofs)))
    assert proofs.asked == [("POST", TOKEN, None)]
    assert dict(web.sent_to(TOKEN).headers)["dpop"] == "proof-1"
    assert grant.record.tokens is not None
    assert grant.record.tokens.token_type == "DPoP"


@pytest.mark.parametrize("status", [400, 401])
def test_token_request_is_repeated_once_with_the_required_dpop_nonce(status: int) -> None:
    web, proofs = web_with(in_turn(nonce(status), BOUND)), Proofs()
    web.run(sign_in(settings(), context(proof_key=proofs)))
    assert proofs.asked == [("POST", TOKEN, None), ("POST", TOKEN, "n-1")]
    first, second = [step for step in web.steps if isinstance(step, Fetch) and step.url == TOKEN]
    assert form_of(first) == form_of(second)


def test_token_request_raises_authorization_error_if_the_server_requires_a_second_dpop_nonce() -> None:
    web = web_with(in_turn(nonce(), nonce(value="n-2")))
    with pytest.raises(AuthorizationError, match="use_dpop_nonce") as caught:
        web.run(sign_in(settings(), context(proof_key=Proofs())))
    assert caught.value.code == "use_dpop_nonce"


@pytest.mark.parametrize("answered", [nonce(value=""), nonce(value='a"b'), nonce(500), nonce(error="invalid_grant")])
def test_token_request_is_repeated_only_after_a_use_dpop_nonce_error_with_a_valid_nonce(answered: Fetched) -> None:
    web = web_with(answered)
    with pytest.raises(AuthorizationError):
        web.run(sign_in(settings(), context(proof_key=Proofs())))
    assert web.asked.count(TOKEN) == 1


def test_token_request_without_a_dpop_proof_is_not_repeated_for_a_nonce() -> None:
    web = web_with(nonce())
    with pytest.raises(AuthorizationError, match="use_dpop_nonce"):
        web.run(sign_in(settings(), context()))
    assert web.asked.count(TOKEN) == 1


def test_token_endpoint_url_with_a_scheme_other_than_http_raises_authorization_error_if_dpop_is_used() -> None:
    web = usual_web(token_endpoint="x:y")
    proofs = ProofKey.generate()

    with pytest.raises(AuthorizationError, match="token endpoint is invalid"):
        web.run(sign_in(settings(), context(proof_key=proofs)))
