"""The answer that the browser brings: whose it is comes before all that it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.auth.oauth_client.scripted_web import ISSUER, REDIRECT, ScriptedWeb, form_of, settings, situation, usual_web

from trio_mcp.auth.errors import AuthorizationError
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.steps import Visit

TOKEN = f"{ISSUER}/token"
ISS = "authorization_response_iss_parameter_supported"

Callback = Callable[[Mapping[str, str]], Mapping[str, str]]


def answering(**parameters: str | None) -> Callback:
    def callback(query: Mapping[str, str]) -> Mapping[str, str]:
        answer = {"code": "c0de", "state": query["state"], **parameters}
        return {name: value for name, value in answer.items() if value is not None}

    return callback


def web_with(callback: Callback, **metadata: Any) -> ScriptedWeb:
    web = usual_web(**metadata)
    web.callback = callback
    return web


# RFC 9207: does the server say that it sends iss, the iss, and whether the code is used
TABLE = [
    (True, ISSUER, True),
    (True, None, False),
    (True, "", False),
    (True, "https://evil.example", False),
    (True, f"{ISSUER}/", False),
    (True, "https://AS.example", False),
    (True, "https://as.example:443", False),
    (True, "https%3A%2F%2Fas.example", False),
    (False, ISSUER, True),
    (False, None, True),
    (False, "https://evil.example", False),
    (None, ISSUER, True),
    (None, None, True),
    (None, "https://evil.example", False),
    (None, "", False),
]


@pytest.mark.parametrize(("supported", "iss", "used"), TABLE)
def test_code_is_used_where_the_answer_is_from_the_issuer(supported: bool | None, iss: str | None, used: bool) -> None:
    web = web_with(answering(iss=iss), **{ISS: supported})
    if used:
        web.run(sign_in(settings(), situation()))
        assert form_of(web.sent_to(TOKEN))["code"] == "c0de"
        return
    with pytest.raises(AuthorizationError, match="authorization server"):
        web.run(sign_in(settings(), situation()))
    assert TOKEN not in web.asked


@pytest.mark.parametrize("state", [None, "", "x", "é"])
def test_answer_with_another_state_is_not_used(state: str | None) -> None:
    web = web_with(answering(state=state))
    with pytest.raises(AuthorizationError, match="the answer to another request"):
        web.run(sign_in(settings(), situation()))
    assert TOKEN not in web.asked


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"error": "access_denied", "state": "x"}, "another request"),
        ({"error": "access_denied", "iss": "https://evil.example"}, "from another authorization server"),
        ({"error": "access_denied"}, "does not say which"),
    ],
)
def test_error_of_somebody_else_is_neither_shown_nor_acted_on(parameters: dict[str, str], words: str) -> None:
    web = web_with(answering(**parameters), **{ISS: True})
    with pytest.raises(AuthorizationError, match=words) as caught:
        web.run(sign_in(settings(), situation()))
    assert caught.value.code is None


@pytest.mark.parametrize("code", ["access_denied", "invalid_scope", "temporarily_unavailable", "login_required"])
def test_error_of_the_issuer_is_the_code_of_the_error(code: str) -> None:
    web = web_with(answering(error=code, error_description="words", iss=ISSUER))
    with pytest.raises(AuthorizationError, match=code) as caught:
        web.run(sign_in(settings(), situation()))
    assert caught.value.code == code
    assert "words" not in str(caught.value)


def test_error_that_no_rfc_knows_is_not_repeated() -> None:
    web = web_with(answering(error="visit https://evil.example"))
    with pytest.raises(AuthorizationError, match="an unknown error") as caught:
        web.run(sign_in(settings(), situation()))
    assert "evil" not in repr(caught.value)


@pytest.mark.parametrize("code", [None, "", "c" * 8193])
def test_answer_without_a_code_that_can_be_sent_is_an_error(code: str | None) -> None:
    web = web_with(answering(code=code))
    with pytest.raises(AuthorizationError, match="has no code"):
        web.run(sign_in(settings(), situation()))


def visit_of(machine: Any, web: ScriptedWeb) -> Visit:
    """The visit that ``machine`` asks for, before its outcome."""
    step = next(machine)
    while not isinstance(step, Visit):
        found = web.answers[step.url]
        step = machine.send(found)
    return step


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (REDIRECT, "another request"),
        ("", "another request"),
        ("http://[", "cannot be read"),
        (f"{REDIRECT}?" + "&".join(f"p{number}=1" for number in range(100)), "cannot be read"),
        (f"{REDIRECT}?state=\ud800", "another request"),
        (f"{REDIRECT}?state=%ff%fe", "another request"),
    ],
)
def test_answer_that_is_none_is_an_error(callback: str, words: str) -> None:
    machine = sign_in(settings(), situation())
    visit_of(machine, usual_web())
    with pytest.raises(AuthorizationError, match=words):
        machine.send(callback)


@pytest.mark.parametrize("name", ["code", "state", "iss", "other"])
def test_answer_with_a_parameter_twice_is_an_error(name: str) -> None:
    machine = sign_in(settings(), situation())
    visit = visit_of(machine, usual_web())
    state = visit.url.partition("state=")[2].partition("&")[0]
    with pytest.raises(AuthorizationError, match="a parameter twice"):
        machine.send(f"{REDIRECT}?code=c&state={state}&iss={ISSUER}&other=1&{name}=2")


@pytest.mark.parametrize(
    "endpoint",
    [
        None,
        "",
        "http://as.example/authorize",
        "https://user:pass@as.example/authorize",
        "https://as.example/authorize#x",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://as.example/",
        "https://as.example/a\nb",
        "https://as.example/$(id)`x` y",
        "//as.example/authorize",
        "http://127.0.0.1.evil.example/authorize",
    ],
)
def test_endpoint_that_no_browser_should_open_is_an_error(endpoint: str | None) -> None:
    web = usual_web(authorization_endpoint=endpoint)
    with pytest.raises(AuthorizationError, match="for the browser"):
        web.run(sign_in(settings(), situation()))
    assert not any(isinstance(step, Visit) for step in web.steps)


@pytest.mark.parametrize(
    ("endpoint", "begins"),
    [
        ("http://localhost:8080/authorize", "http://localhost:8080/authorize?response_type=code"),
        ("http://127.0.0.1:8080/authorize", "http://127.0.0.1:8080/authorize?response_type=code"),
        ("http://[::1]:8080/authorize", "http://[::1]:8080/authorize?response_type=code"),
        ("https://as.example/authorize?tenant=1", "https://as.example/authorize?tenant=1&response_type=code"),
        ("https://as.example", "https://as.example/?response_type=code"),
    ],
)
def test_authorization_request_is_added_to_the_endpoint(endpoint: str, begins: str) -> None:
    web = usual_web(authorization_endpoint=endpoint)
    web.run(sign_in(settings(), situation()))
    (visit,) = [step for step in web.steps if isinstance(step, Visit)]
    assert visit.url.startswith(begins)
    assert visit.redirect_uri == REDIRECT
    assert "state" not in repr(visit)


@pytest.mark.parametrize("methods", [None, [], ["plain"], ["s256"]])
def test_server_without_s256_is_refused_before_anything_else_is_asked(methods: list[str] | None) -> None:
    web = usual_web(code_challenge_methods_supported=methods)
    with pytest.raises(AuthorizationError, match="does not support PKCE with S256"):
        web.run(sign_in(settings(), situation()))
    assert len(web.steps) == 2


def test_each_sign_in_has_a_state_and_a_verifier_of_its_own() -> None:
    webs = [usual_web() for _ in range(2)]
    for web in webs:
        web.run(sign_in(settings(), situation()))
    assert len({web.visited["state"] for web in webs}) == 2
    assert len({form_of(web.sent_to(TOKEN))["code_verifier"] for web in webs}) == 2
