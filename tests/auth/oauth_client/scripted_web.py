"""ScriptedWeb: the servers that a machine asks, and the user's browser, without any network."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import attrs

from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed
from trio_mcp.auth.oauth_client.authorization_code import OAuth, OAuthSettings
from trio_mcp.auth.oauth_client.grants import GrantContext, Machine, Visit
from trio_mcp.auth.storage.records import StoredAuthorization

T = TypeVar("T")

SERVER = "https://mcp.example/mcp"
ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:41234/callback"
NOW = 1_800_000_000.0

Answer = Fetched | Exception | Callable[[Fetch], Any]


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Fetched:
    """A JSON answer, or one with the very bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Fetched(status=status, headers=headers or {}, body=body)


def form_of(fetch: Fetch) -> dict[str, str]:
    pairs = parse_qsl(fetch.body.decode(), keep_blank_values=True, strict_parsing=True)
    assert len(dict(pairs)) == len(pairs), "no parameter comes twice"
    return dict(pairs)


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def basic_of(fetch: Fetch) -> tuple[str, str]:
    """The id and the secret in the header."""
    scheme, _, text = dict(fetch.headers)["authorization"].partition(" ")
    assert scheme == "Basic"
    client_id, _, secret = b64decode(text).decode().partition(":")
    return unquote_plus(client_id), unquote_plus(secret)


def resource_metadata(**changes: object) -> dict[str, object]:
    return {"resource": SERVER, "authorization_servers": [ISSUER], **changes}


def server_metadata(issuer: str = ISSUER, **changes: object) -> dict[str, object]:
    metadata = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        **changes,
    }
    return {name: value for name, value in metadata.items() if value is not None}


TOKENS = {"access_token": "access-1", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "refresh-1"}


@attrs.define
class ScriptedWeb:
    """URLs and their answers; any other URL is answered with 404."""

    answers: dict[str, Answer]
    callback: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda query: {"code": "c0de", "state": query["state"]}
    """The parameters that the browser is sent back with, by those of the request."""
    steps: list[Fetch | Visit] = attrs.field(factory=list[Fetch | Visit])

    def run(self, machine: Machine[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = machine.throw(outcome) if isinstance(outcome, Exception) else machine.send(outcome)
            except StopIteration as end:
                return end.value
            self.steps.append(step)
            outcome = self._outcome(step)

    def _outcome(self, step: Fetch | Visit) -> Any:
        if isinstance(step, Visit):
            return f"{step.redirect_uri}?{urlencode(self.callback(query_of(step.url)))}"
        found = self.answers.get(step.url, answer(b"not found", 404))
        return found if isinstance(found, Fetched | Exception) else found(step)

    @property
    def asked(self) -> list[str]:
        """The URLs in their order, without those of the browser."""
        return [step.url for step in self.steps if isinstance(step, Fetch)]

    @property
    def visited(self) -> dict[str, str]:
        """The parameters of the one authorization request."""
        (visit,) = [step for step in self.steps if isinstance(step, Visit)]
        return query_of(visit.url)

    def sent_to(self, url: str) -> Fetch:
        """The last request to ``url``."""
        return [step for step in self.steps if isinstance(step, Fetch) and step.url == url][-1]


def usual_web(issuer: str = ISSUER, **metadata: object) -> ScriptedWeb:
    """A server with its resource metadata at its path, and one authorization server that registers clients."""
    return ScriptedWeb(
        {
            "https://mcp.example/.well-known/oauth-protected-resource/mcp": answer(
                resource_metadata(authorization_servers=[issuer])
            ),
            f"{issuer}/.well-known/oauth-authorization-server": answer(server_metadata(issuer, **metadata)),
            f"{issuer}/register": answer({"client_id": "client-1"}, 201),
            f"{issuer}/token": answer(TOKENS),
        }
    )


def settings(**changes: Any) -> OAuthSettings:
    own = {name: changes.pop(name) for name in ("client", "redirect_uri") if name in changes}
    return OAuthSettings(**{"auth": OAuth(**changes), "redirect_uri": REDIRECT, **own})


def context(stored: StoredAuthorization | None = None, **changes: Any) -> GrantContext:
    return GrantContext(
        **{"server_url": SERVER, "stored": stored or StoredAuthorization(), "now": lambda: NOW, **changes}
    )


def failed(*_: object) -> FetchFailed:
    return FetchFailed("nobody listens there")
