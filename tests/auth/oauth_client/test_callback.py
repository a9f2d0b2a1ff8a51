"""The answer that the browser brings: whose it is comes before all that it says."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    REDIRECT,
    SERVER,
    ScriptedWeb,
    answer,
    context,
    form_of,
    resource_metadata,
    server_metadata,
    settings,
    usual_web,
)

from trio_mcp.auth.credentials import AuthorizationError
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.grants import PreregisteredClient, Visit

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
def test_client_uses_an_authorization_code_only_if_the_oauth_callback_comes_from_the_issuer(
    supported: bool | None, iss: str | None, used: bool
) -> None:
    web = web_with(answering(iss=iss), **{ISS: supported})
    if used:
        web.run(sign_in(settings(), context()))
        assert form_of(web.sent_to(TOKEN))["code"] == "c0de"
        return
    with pytest.raises(AuthorizationError, match="authorization server"):
        web.run(sign_in(settings(), context()))
    assert TOKEN not in web.asked


@pytest.mark.parametrize(("iss", "used"), [(ISSUER, False), (f"{ISSUER}/", True), (f"{ISSUER}//", False)])
def test_iss_parameter_of_an_oauth_callback_must_equal_the_issuer_in_the_metadata(iss: str, used: bool) -> None:
    web = web_with(answering(iss=iss), **{ISS: True})
    web.answers[f"{ISSUER}/.well-known/oauth-authorization-server"] = answer(
        server_metadata(issuer=f"{ISSUER}/", token_endpoint=TOKEN, registration_endpoint=f"{ISSUER}/register")
    )
    with nullcontext() if used else pytest.raises(AuthorizationError, match="names another authorization server"):
        web.run(sign_in(settings(), context()))
    assert (TOKEN in web.asked) is used


@pytest.mark.parametrize("state", [None, "", "x", "é"])
def test_oauth_callback_without_the_state_of_the_request_raises_authorization_error(state: str | None) -> None:
    web = web_with(answering(state=state))
    with pytest.raises(AuthorizationError, match="belongs to another authorization request"):
        web.run(sign_in(settings(), context()))
    assert TOKEN not in web.asked


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"error": "access_denied", "state": "x"}, "another authorization request"),
        (
            {"error": "access_denied", "iss": "https://evil.example"},
            "names another authorization server",
        ),
        ({"error": "access_denied"}, "has no parameter iss"),
    ],
)
def test_error_code_in_an_oauth_callback_of_another_issuer_is_ignored(parameters: dict[str, str], words: str) -> None:
    web = web_with(answering(**parameters), **{ISS: True})
    with pytest.raises(AuthorizationError, match=words) as caught:
        web.run(sign_in(settings(), context()))
    assert caught.value.code is None


@pytest.mark.parametrize("code", ["access_denied", "invalid_scope", "temporarily_unavailable", "login_required"])
def test_exception_contains_the_error_code_of_an_oauth_callback_from_the_issuer(code: str) -> None:
    web = web_with(answering(error=code, error_description="words", iss=ISSUER))
    with pytest.raises(AuthorizationError, match=code) as caught:
        web.run(sign_in(settings(), context()))
    assert caught.value.code == code
    assert "words" not in str(caught.value)


def test_exception_contains_an_unregistered_error_code_of_an_oauth_callback() -> None:
    with pytest.raises(AuthorizationError, match=r"denied the user access: app_not_approved_by_team\Z") as caught:
        web_with(answering(error="app_not_approved_by_team")).run(sign_in(settings(), context()))
    assert caught.value.code is None


def test_exception_does_not_quote_an_oauth_callback_error_that_equals_the_secret_state_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "token_urlsafe", lambda *_: "onlyLetters")  # which look like an error code
    with pytest.raises(AuthorizationError, match=r"denied the user access: an unknown error\Z"):
        web_with(answering(error="onlyLetters")).run(sign_in(settings(), context()))


def test_exception_does_not_quote_a_malformed_error_of_an_oauth_callback() -> None:
    web = web_with(answering(error="visit https://evil.example"))
    with pytest.raises(AuthorizationError, match="an unknown error") as caught:
        web.run(sign_in(settings(), context()))
    assert "evil" not in repr(caught.value)


@pytest.mark.parametrize("code", [None, "", "c" * 8193])
def test_oauth_callback_without_a_valid_code_raises_authorization_error(code: str | None) -> None:
    web = web_with(answering(code=code))
    with pytest.raises(AuthorizationError, match="contains no valid authorization code"):
        web.run(sign_in(settings(), context()))


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
        (REDIRECT, "another authorization request"),
        ("", "another authorization request"),
        ("http://[", "with a malformed query"),
        (f"{REDIRECT}?" + "&".join(f"p{number}=1" for number in range(100)), "with a malformed query"),
        (f"{REDIRECT}?state=\ud800", "another authorization request"),
        (f"{REDIRECT}?state=%ff%fe", "another authorization request"),
    ],
)
def test_oauth_callback_that_is_not_an_authorization_response_raises_authorization_error(
    callback: str, words: str
) -> None:
    machine = sign_in(settings(), context())
    visit_of(machine, usual_web())
    with pytest.raises(AuthorizationError, match=words):
        machine.send(callback)


@pytest.mark.parametrize("name", ["code", "state", "iss", "other"])
def test_oauth_callback_with_a_duplicate_parameter_raises_authorization_error(name: str) -> None:
    machine = sign_in(settings(), context())
    visit = visit_of(machine, usual_web())
    state = visit.url.partition("state=")[2].partition("&")[0]
    with pytest.raises(AuthorizationError, match="repeats a parameter"):
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
def test_unsafe_authorization_endpoint_url_raises_before_the_browser_opens(endpoint: str | None) -> None:
    web = usual_web(authorization_endpoint=endpoint)
    with pytest.raises(AuthorizationError, match=r"authorization.endpoint"):
        web.run(sign_in(settings(), context()))
    assert not any(isinstance(step, Visit) for step in web.steps)


@pytest.mark.parametrize(
    ("endpoint", "begins"),
    [
        ("https://as.example/authorize?tenant=1", "https://as.example/authorize?tenant=1&response_type=code"),
        ("https://as.example/authorize?", "https://as.example/authorize?response_type=code"),
        ("https://203.0.113.0.example/a", "https://203.0.113.0.example/a?response_type=code"),
        ("https://8.8.8.8/authorize", "https://8.8.8.8/authorize?response_type=code"),
        ("https://as.example", "https://as.example/?response_type=code"),
    ],
)
def test_authorization_request_keeps_the_query_in_the_authorization_endpoint_url(endpoint: str, begins: str) -> None:
    web = usual_web(authorization_endpoint=endpoint)
    web.run(sign_in(settings(), context()))
    (visit,) = [step for step in web.steps if isinstance(step, Visit)]
    assert visit.url.startswith(begins)
    assert visit.redirect_uri == REDIRECT
    assert "state" not in repr(visit)


MACHINE = [
    "http://localhost:8080/authorize",
    "http://127.0.0.1:8080/authorize",
    "http://[::1]:8080/authorize",
    "https://localhost./authorize",
    "https://admin.localhost/authorize",
    "https://127.9.9.9/authorize",
    "https://127.1/authorize",
    "https://2130706433/authorize",
    "https://0x7f000001/authorize",
    "https://0177.0.0.1/authorize",
    "https://0/authorize",
    "https://0.0.0.0/authorize",
    "https://[::]/authorize",
    "https://[::ffff:127.0.0.1]/authorize",
    "https://\uff11\uff12\uff17.0.0.1/authorize",
]
NETWORK = [
    "https://10.0.0.1/authorize",
    "https://192.168.1.1:8443/authorize",
    "https://172.16.0.1/authorize",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.0.1/authorize",
    "https://[fd00::1]/authorize",
    "https://[fe80::1]/authorize",
    "https://[64:ff9b::a00:1]/authorize",
    "https://0xa000001/authorize",
    "https://1.2.3.4.5/authorize",
]


@pytest.mark.parametrize("endpoint", [*MACHINE, *NETWORK])
def test_remote_authorization_server_cannot_send_the_browser_to_a_local_address(endpoint: str) -> None:
    web = usual_web(authorization_endpoint=endpoint)
    with pytest.raises(AuthorizationError, match="refusing to open the authorization endpoint"):
        web.run(sign_in(settings(), context()))
    assert not any(isinstance(step, Visit) for step in web.steps)


def near_web(server_url: str, issuer: str, endpoint: str) -> ScriptedWeb:
    """The server at ``server_url``, and its authorization server."""
    web = usual_web(issuer, authorization_endpoint=endpoint)
    origin = server_url.removesuffix("/mcp")
    metadata = resource_metadata(resource=server_url, authorization_servers=[issuer])
    web.answers[f"{origin}/.well-known/oauth-protected-resource/mcp"] = answer(metadata)
    return web


@pytest.mark.parametrize(
    ("server_url", "endpoint"),
    [
        *[("http://127.0.0.1:9/mcp", endpoint) for endpoint in (MACHINE[0], MACHINE[1], MACHINE[2], NETWORK[0])],
        *[("http://localhost:9/mcp", endpoint) for endpoint in (MACHINE[0], NETWORK[0])],
        ("https://192.168.7.7/mcp", NETWORK[0]),
    ],
)
def test_local_mcp_server_can_have_a_local_authorization_server(server_url: str, endpoint: str) -> None:
    web = near_web(server_url, ISSUER, endpoint)
    web.run(sign_in(settings(), context(server_url=server_url)))
    (visit,) = [step for step in web.steps if isinstance(step, Visit)]
    assert visit.url.startswith(f"{endpoint}?response_type=code")


def test_mcp_server_in_a_private_network_cannot_send_the_browser_to_localhost() -> None:
    web = near_web("https://10.1.1.1/mcp", ISSUER, MACHINE[0])
    with pytest.raises(AuthorizationError, match="refusing to open the authorization endpoint"):
        web.run(sign_in(settings(), context(server_url="https://10.1.1.1/mcp")))


def test_authorization_server_named_in_the_options_can_have_a_private_address() -> None:
    issuer = "https://10.0.0.1"
    web = usual_web(issuer)
    web.run(sign_in(settings(client=PreregisteredClient(client_id="me", issuer=issuer)), context()))
    (visit,) = [step for step in web.steps if isinstance(step, Visit)]
    assert visit.url.startswith(f"{issuer}/authorize?")


@pytest.mark.parametrize(
    "query",
    [
        "client_id=evil",
        "state=theirs&redirect_uri=https%3A%2F%2Fevil.example",
        "a=1&%73tate=theirs&b=2",
        "code_challenge=x&code_challenge_method=plain&response_type=token",
        "resource=https://evil.example&resource=2",
        "client+id=1&state",
    ],
)
def test_authorization_request_does_not_repeat_parameters_that_the_endpoint_url_already_contains(query: str) -> None:
    web = usual_web(authorization_endpoint=f"https://as.example/authorize?{query}")
    web.run(sign_in(settings(), context()))
    (visit,) = [step for step in web.steps if isinstance(step, Visit)]
    pairs = parse_qsl(urlsplit(visit.url).query, keep_blank_values=True, strict_parsing=True)
    sent = dict(pairs)
    assert len(sent) == len(pairs)
    assert (sent["client_id"], sent["redirect_uri"], sent["response_type"]) == ("client-1", REDIRECT, "code")
    assert (sent["resource"], sent["code_challenge_method"]) == (SERVER, "S256")
    assert [name for name in ("a", "b", "client id") if name in sent] == [
        name for name in ("a", "b", "client id") if f"{name.replace(' ', '+')}=" in query
    ]


@pytest.mark.parametrize("methods", [None, [], ["plain"], ["s256"]])
def test_client_raises_before_registration_if_the_authorization_server_does_not_support_pkce_s256(
    methods: list[str] | None,
) -> None:
    web = usual_web(code_challenge_methods_supported=methods)
    with pytest.raises(AuthorizationError, match="does not support PKCE with S256") as raised:
        web.run(sign_in(settings(), context()))
    assert len(web.steps) == 2
    assert ("assume_pkce=True" in str(raised.value)) is (methods is None), "which is of no use with other methods"


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_client_with_the_assume_pkce_option_accepts_a_server_that_lists_no_pkce_methods(
    methods: list[str] | None,
) -> None:
    web = usual_web(code_challenge_methods_supported=methods)
    assuming = sign_in(settings(assume_pkce=True), context())
    if methods is None:
        web.run(assuming)
        assert web.visited["code_challenge_method"] == "S256"
    else:
        with pytest.raises(AuthorizationError, match="does not support PKCE with S256"):
            web.run(assuming)


def test_each_sign_in_uses_a_new_state_and_a_new_code_verifier() -> None:
    webs = [usual_web() for _ in range(2)]
    for web in webs:
        web.run(sign_in(settings(), context()))
    assert len({web.visited["state"] for web in webs}) == 2
    assert len({form_of(web.sent_to(TOKEN))["code_verifier"] for web in webs}) == 2
