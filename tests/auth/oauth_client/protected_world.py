"""A protected server, and the authorization server that it names, at one origin of this machine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
from tests.connecting.http.scripted import Answer, Got, Handler, serving

__all__ = ["World", "protected"]


@attrs.define(eq=False)
class World:
    """What the servers know, what they have seen, and how they behave."""

    then: Handler
    """Answers the requests that have a good token."""
    origin: str = ""
    resource: str | None = None
    """The server that the metadata are about, where that is another one."""
    expires_in: int | None = 3600
    rotates: bool = True
    dpop_nonce: str | None = None
    """The nonce that a proof must have."""
    needed: dict[str, str] = attrs.field(factory=dict[str, str])
    """The scope that each tool needs."""
    refuse_refresh: str | None = None
    """The error of all refreshes; ``"cut"``: the connection breaks."""
    refuse: str | None = None
    """The error of all other token requests."""
    before_token: Callable[[dict[str, str]], Awaitable[None]] | None = None
    on_refused: Callable[[Got], None] = lambda got: None
    good: dict[str, str] = attrs.field(factory=dict[str, str])
    """Scopes by access tokens that are good."""
    refresh_tokens: dict[str, str] = attrs.field(factory=dict[str, str])
    """Scopes by refresh tokens that are good."""
    authorizations: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])
    token_requests: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])
    registrations: int = 0
    tokens: set[str] = attrs.field(factory=set[str])
    """Tokens that came with messages, good ones and others."""
    calls: list[str] = attrs.field(factory=list[str])
    """Messages that were let in."""
    secrets: list[str] = attrs.field(factory=list[str])
    """All that nobody must ever read in a log."""
    revoked: list[str] | None = None
    """Tokens that nobody is to use any more; `None`: the server revokes none."""
    issued: int = 0

    @property
    def url(self) -> str:
        return self.resource or f"{self.origin}/mcp"

    @property
    def metadata_url(self) -> str:
        return f"{self.origin}/.well-known/oauth-protected-resource/mcp"

    @property
    def refreshes(self) -> list[dict[str, str]]:
        return [form for form in self.token_requests if form["grant_type"] == "refresh_token"]

    async def visit(self, url: str) -> str:
        """Sign in as a user who says yes: an ``on_visit``."""
        asked = dict(parse_qsl(urlsplit(url).query))
        self.authorizations.append(asked)
        code = f"code-{len(self.authorizations)}-{asked.get('scope', '')}"
        self.secrets += [code.split(" ")[0], asked["state"]]
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def expire(self) -> None:
        """Let all access tokens be good no more."""
        self.good.clear()

    async def answer(self, got: Got, answer: Answer) -> None:
        path = got.target.partition("?")[0]
        match path:
            case "/.well-known/oauth-protected-resource/mcp":
                await answer.json({"resource": self.url, "authorization_servers": [self.origin]})
            case "/.well-known/oauth-authorization-server":
                revoking = {} if self.revoked is None else {"revocation_endpoint": f"{self.origin}/revoke"}
                await answer.json(
                    {
                        **revoking,
                        "issuer": self.origin,
                        "authorization_endpoint": f"{self.origin}/authorize",
                        "token_endpoint": f"{self.origin}/token",
                        "registration_endpoint": f"{self.origin}/register",
                        "response_types_supported": ["code"],
                        "code_challenge_methods_supported": ["S256"],
                        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                    }
                )
            case "/register":
                self.registrations += 1
                wanted = json.loads(got.body)
                await answer.json({"client_id": f"client-{self.registrations}", **wanted}, 201)
            case "/authorize":  # as a browser comes, whose user says yes
                await answer.whole(302, b"", location=await self.visit(got.target))
            case "/token":
                await self._token(got, answer)
            case "/revoke" if self.revoked is not None:
                token = dict(parse_qsl(got.body.decode()))["token"]
                self.revoked.append(token)
                self.good.pop(token, None)
                await answer.whole(200)
            case "/mcp":
                await self._mcp(got, answer)
            case _:
                await answer.whole(404)

    async def _token(self, got: Got, answer: Answer) -> None:
        form = dict(parse_qsl(got.body.decode()))
        self.token_requests.append(form)
        self.secrets += [form[name] for name in ("code_verifier", "client_secret", "assertion") if name in form]
        if self.before_token is not None:
            await self.before_token(form)
        assert form["resource"] == self.url
        match form["grant_type"]:
            case "authorization_code":
                scope = form["code"].split("-", 2)[2]
            case "refresh_token":
                if self.refuse_refresh == "cut":
                    await answer.cut()
                    answer.begun = False
                    return
                if self.refuse_refresh is not None or form["refresh_token"] not in self.refresh_tokens:
                    self.refresh_tokens.clear()  # as those who detect the second use of one
                    await answer.json({"error": self.refuse_refresh or "invalid_grant"}, 400)
                    return
                scope = self.refresh_tokens[form["refresh_token"]]
                if self.rotates:
                    del self.refresh_tokens[form["refresh_token"]]
            case _:
                if self.refuse is not None:
                    await answer.json({"error": self.refuse}, 400)
                    return
                scope = form.get("scope", "")
        self.issued += 1
        access, refresh = f"access-{self.issued}-s3cret", f"refresh-{self.issued}-s3cret"
        self.good[access] = scope
        self.refresh_tokens[refresh] = scope
        self.secrets += [access, refresh]
        token_type = "DPoP" if "dpop" in got.headers else "Bearer"
        granted: dict[str, Any] = {"access_token": access, "token_type": token_type, "refresh_token": refresh}
        if scope:
            granted["scope"] = scope
        if self.expires_in is not None:
            granted["expires_in"] = self.expires_in
        await answer.json(granted)

    async def _mcp(self, got: Got, answer: Answer) -> None:
        scheme, _, token = got.headers.get("authorization", "").partition(" ")
        if token:
            self.tokens.add(token)
        metadata = f'resource_metadata="{self.metadata_url}"'
        if token not in self.good:
            self.on_refused(got)
            await answer.whole(401, b"", www_authenticate=f"Bearer {metadata}, DPoP {metadata}")
            return
        if self.dpop_nonce is not None and scheme == "DPoP" and self.dpop_nonce not in nonces(got):
            challenge = f'DPoP error="use_dpop_nonce", {metadata}'
            await answer.whole(401, b"", www_authenticate=challenge, dpop_nonce=self.dpop_nonce)
            return
        tool = got.message.get("params", {}).get("name") if got.body else None
        scope = self.needed.get(tool or "", "")
        if scope and scope not in self.good[token].split():
            challenge = f'Bearer error="insufficient_scope", scope="{scope}", {metadata}'
            await answer.whole(403, b"", www_authenticate=challenge)
            return
        self.calls.append(got.name)
        await self.then(got, answer)


def nonces(got: Got) -> str:
    import base64

    claims = got.headers["dpop"].split(".")[1]
    return json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).get("nonce", "")


@asynccontextmanager
async def protected(then: Handler, **behaviour: Any) -> AsyncGenerator[World]:
    """Run both servers inside."""
    world = World(then, **behaviour)
    async with serving(world.answer) as server:
        world.origin = server.url.removesuffix("/mcp")
        yield world
