"""Five identity providers on this machine, as their public documentation describes them: where their metadata are and
what these leave out, what they take for a client, a scope and a resource, and what they write into a token.

Each is one origin, so the other hosts that Entra ID and Google use are paths here.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import attrs
from tests.auth.resource_server.minting import base64url, jwk, rsa_key, signed_text
from tests.connecting.http.scripted import Answer, Got, serving

__all__ = ["Auth0", "EntraID", "Google", "Keycloak", "Okta", "Provider", "running"]

TENANT = "8eaef023-2b34-4da1-9baa-8bc8c9d6a490"
REFUSED = 400

Reply: TypeAlias = tuple[int, dict[str, Any]]
"""A status, and a document."""


@attrs.define(eq=False, kw_only=True)
class Provider:
    """An authorization server, whose one user says yes to what the provider lets them say."""

    metadata_paths: ClassVar[tuple[str, ...]]
    endpoints: ClassVar[dict[str, str]]
    """Paths, by their names in the metadata."""
    listed: ClassVar[dict[str, Any]] = {"code_challenge_methods_supported": ["plain", "S256"]}
    """What the metadata say beside."""
    path: str = ""
    """The path of the issuer."""
    resource: str
    """The URL of the server that the people of the provider have in mind."""
    origin: str = ""
    clients: dict[str, str | None] = attrs.field(factory=lambda: dict[str, str | None](editor=None, bot="s3cret"))
    """Secrets by client ids; `None` for a client without one."""
    redirect_uris: list[str] = attrs.field(factory=list[str])
    scopes: set[str] = attrs.field(factory=lambda: {"notes:read", "notes:write", "offline_access"})
    expires_in: int = 3600
    asked: list[str] = attrs.field(factory=list[str])
    """Methods and paths of all requests but those for metadata and keys."""
    requested: list[dict[str, str]] = attrs.field(factory=list[dict[str, str]])
    """The parameters of the browser, and those of requests for tokens."""
    codes: dict[str, dict[str, str]] = attrs.field(factory=dict[str, dict[str, str]])
    """Requests of the browser, by the codes for them."""
    refreshes: dict[str, dict[str, str]] = attrs.field(factory=dict[str, dict[str, str]])

    @property
    def issuer(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            **{name: f"{self.origin}{path}" for name, path in self.endpoints.items()},
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            **self.listed,
        }

    async def answer(self, got: Got, answer: Answer) -> None:
        path = got.target.partition("?")[0]
        if path in self.metadata_paths:
            await answer.json(self.metadata)
        elif path == self.endpoints["jwks_uri"]:
            await answer.json({"keys": [jwk(rsa_key(), kid="k1", use="sig", alg="RS256")]})
        elif "/.well-known/" in path:
            await answer.whole(404)
        else:
            self.asked.append(f"{got.method} {path}")
            status, document = self.reply(path, got)
            await answer.json(document, status)

    def reply(self, path: str, got: Got) -> Reply:
        if path == self.endpoints["token_endpoint"]:
            form = dict(parse_qsl(got.body.decode()))
            self.requested.append(form)
            return self.token(form, got.headers.get("authorization", ""))
        if path == self.endpoints.get("registration_endpoint"):
            return self.registered(json.loads(got.body))
        return 404, {"error": "not found"}

    async def visit(self, url: str) -> str:
        """Open ``url`` as a browser does, and return where the browser is sent to: an ``on_visit``."""
        assert url.startswith(f"{self.origin}{self.endpoints['authorization_endpoint']}?")
        asked = dict(parse_qsl(urlsplit(url).query))
        self.requested.append(asked)
        assert asked["client_id"] in self.clients, "a page for people: no such client"
        assert self.may_redirect(asked["redirect_uri"]), "a page for people: no redirect URI of this client"
        error = self.objection(asked)
        code = f"code-{len(self.codes)}"
        if error is None:
            self.codes[code] = asked
        told = {"code": code} if error is None else {"error": error, "error_description": "for people"}
        return f"{asked['redirect_uri']}?{urlencode({**told, 'state': asked['state']})}"

    def may_redirect(self, uri: str) -> bool:
        return uri in self.redirect_uris

    def objection(self, asked: dict[str, str]) -> str | None:
        """The error of a request that the provider refuses."""
        return None if set(asked.get("scope", "").split()) <= self.scopes else "invalid_scope"

    def registered(self, wanted: dict[str, Any]) -> Reply:
        raise NotImplementedError

    def token(self, form: dict[str, str], authorization: str) -> Reply:
        client_id, secret = form.get("client_id", ""), form.get("client_secret")
        if authorization.startswith("Basic "):
            client_id, secret = map(unquote, b64decode(authorization[6:]).decode().split(":"))
        if client_id not in self.clients or secret != self.clients[client_id]:
            return self.failure("invalid_client", 401)
        match form["grant_type"]:
            case "authorization_code":
                asked = self.codes.pop(form["code"], None)
                digest = base64url(hashlib.sha256(form["code_verifier"].encode()).digest())
                if asked is None or digest != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
                    return self.failure("invalid_grant")
            case "refresh_token":
                asked = self.refreshes.pop(form["refresh_token"], None)
                if asked is None:
                    return self.failure("invalid_grant")
            case _:
                asked = {**form, "client_id": client_id, "grant": "client"}
        return self.granted(asked)

    def granted(self, asked: dict[str, str]) -> Reply:
        answer = {"access_token": self.access_token(asked), "token_type": "Bearer", "expires_in": self.expires_in}
        if self.refreshes_for(asked):
            answer["refresh_token"] = f"refresh-{len(self.requested)}"
            self.refreshes[answer["refresh_token"]] = asked
        return 200, {**answer, "scope": asked.get("scope", "")}

    def refreshes_for(self, asked: dict[str, str]) -> bool:
        return "offline_access" in asked.get("scope", "").split()

    def failure(self, error: str, status: int = REFUSED) -> Reply:
        return status, {"error": error, "error_description": "for people"}

    def access_token(self, asked: dict[str, str]) -> str:
        raise NotImplementedError

    def signed(self, typ: str | None, /, **claims: Any) -> str:
        header = {"alg": "RS256", "kid": "k1", **({} if typ is None else {"typ": typ})}
        now = int(time.time())
        return signed_text(header, {"iat": now, "exp": now + 3600, **claims}, rsa_key())


@attrs.define(eq=False, kw_only=True)
class Keycloak(Provider):
    """keycloak.org, securing-apps/mcp-authz-server: no resource indicators but as an experiment; the audience is that
    of a mapper in a client scope. Clients from unknown hosts are not registered, and tokens call themselves JWT."""

    path: str = "/realms/acme"
    metadata_paths: ClassVar[tuple[str, ...]] = (
        "/realms/acme/.well-known/openid-configuration",
        "/.well-known/oauth-authorization-server/realms/acme",
    )
    endpoints: ClassVar[dict[str, str]] = {
        "authorization_endpoint": "/realms/acme/protocol/openid-connect/auth",
        "token_endpoint": "/realms/acme/protocol/openid-connect/token",
        "introspection_endpoint": "/realms/acme/protocol/openid-connect/token/introspect",
        "jwks_uri": "/realms/acme/protocol/openid-connect/certs",
        "registration_endpoint": "/realms/acme/clients-registrations/openid-connect",
    }
    listed: ClassVar[dict[str, Any]] = {
        "code_challenge_methods_supported": ["plain", "S256"],
        "scopes_supported": ["openid", "offline_access", "notes:read", "notes:write"],
    }
    has_mapper: bool = True

    def access_token(self, asked: dict[str, str]) -> str:
        audience = [self.resource, "account"] if self.has_mapper else "account"
        return self.signed(
            "JWT",
            iss=self.issuer,
            aud=audience,
            sub="f3b4c1d2-0a11-4b6e-9a39-5d2a6c1f7b10",
            typ="Bearer",
            azp=asked["client_id"],
            scope=asked["scope"],
            preferred_username="ann",
        )

    def reply(self, path: str, got: Got) -> Reply:
        if path == self.endpoints["introspection_endpoint"]:
            if not got.headers.get("authorization", "").startswith("Basic "):
                return self.failure("invalid_client", 401)
            token = dict(parse_qsl(got.body.decode()))["token"]
            claims = token.split(".")[1]
            known = json.loads(b64decode(claims.replace("-", "+").replace("_", "/") + "=" * (-len(claims) % 4)))
            return 200, {**known, "active": True, "client_id": known["azp"], "username": "ann", "token_type": "Bearer"}
        return super().reply(path, got)

    def registered(self, wanted: dict[str, Any]) -> Reply:
        words = "Policy 'Trusted Hosts' rejected request to client-registration service. Details: Host not trusted."
        return 403, {"error": "insufficient_scope", "error_description": words}


@attrs.define(eq=False, kw_only=True)
class Auth0(Provider):
    """auth0.com, MCP guides: an issuer with a slash at its end; `audience`, unless the tenant has the compatibility
    profile for `resource`; a token for no API is encrypted. Two dialects of tokens."""

    path: str = "/"
    metadata_paths: ClassVar[tuple[str, ...]] = (
        "/.well-known/openid-configuration",
        "/.well-known/oauth-authorization-server",
    )
    endpoints: ClassVar[dict[str, str]] = {
        "authorization_endpoint": "/authorize",
        "token_endpoint": "/oauth/token",
        "jwks_uri": "/.well-known/jwks.json",
        "registration_endpoint": "/oidc/register",
    }
    listed: ClassVar[dict[str, Any]] = {
        "code_challenge_methods_supported": ["S256", "plain"],
        "scopes_supported": ["openid", "profile", "offline_access", "email"],
    }
    reads_resource: bool = True
    dialect: str = "access_token"

    def objection(self, asked: dict[str, str]) -> str | None:
        if self.reads_resource and asked.get("resource") != self.resource:
            return "access_denied"  # "Service not found"
        return super().objection(asked)

    def access_token(self, asked: dict[str, str]) -> str:
        if not self.reads_resource:
            return ".".join((base64url(b'{"alg":"dir","enc":"A256GCM"}'), "", "aaaa", "bbbb", "cccc"))
        is_standard = self.dialect == "rfc9068_profile"
        return self.signed(
            "at+jwt" if is_standard else "JWT",
            iss=self.issuer,
            aud=self.resource,
            sub="auth0|5f7c8ec7c33c6c004bbafe82",
            scope=asked["scope"],
            **{"client_id" if is_standard else "azp": asked["client_id"]},
        )

    def registered(self, wanted: dict[str, Any]) -> Reply:
        self.clients["tpc_1"] = None
        self.redirect_uris += wanted["redirect_uris"]
        return 201, {**wanted, "client_id": "tpc_1"}


@attrs.define(eq=False, kw_only=True)
class EntraID(Provider):
    """learn.microsoft.com, identity-platform: OpenID Connect metadata alone, without the methods of PKCE; a `resource`
    must be an Application ID URI to which the scopes belong (AADSTS9010010); tokens of two versions, their scopes
    without that URI; no registration."""

    path: str = f"/{TENANT}/v2.0"
    metadata_paths: ClassVar[tuple[str, ...]] = (f"/{TENANT}/v2.0/.well-known/openid-configuration",)
    endpoints: ClassVar[dict[str, str]] = {
        "authorization_endpoint": f"/{TENANT}/oauth2/v2.0/authorize",
        "token_endpoint": f"/{TENANT}/oauth2/v2.0/token",
        "jwks_uri": f"/{TENANT}/discovery/v2.0/keys",
    }
    listed: ClassVar[dict[str, Any]] = {"scopes_supported": ["openid", "profile", "email", "offline_access"]}
    identifier_uris: list[str] = attrs.field(default=attrs.Factory(lambda self: [self.resource], takes_self=True))
    token_version: int = 2

    def objection(self, asked: dict[str, str]) -> str | None:
        wanted = [scope.rpartition("/")[0] for scope in asked.get("scope", "").split() if "/" in scope]
        resource = asked.get("resource")
        if resource is not None and (resource not in self.identifier_uris or {*wanted} != {resource}):
            return "invalid_target"
        return None

    def failure(self, error: str, status: int = REFUSED) -> Reply:
        words = {"error_description": "AADSTS70000: …", "error_codes": [70000], "trace_id": "0", "correlation_id": "0"}
        return status, {"error": error, **words}

    def access_token(self, asked: dict[str, str]) -> str:
        scopes = [scope.rpartition("/")[2] for scope in asked["scope"].split() if "/" in scope]
        claims = {"sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ", "oid": "690222be", "tid": TENANT}
        if self.token_version == 1:
            claims |= {"iss": f"{self.origin}/{TENANT}/", "aud": self.resource, "appid": asked["client_id"]}
        else:
            claims |= {"iss": self.issuer, "aud": "6e74172b-be56-4843-9ff4-e66a39bb12e3", "azp": asked["client_id"]}
        return self.signed("JWT", **claims, scp=" ".join(scopes), ver=f"{self.token_version}.0")


@attrs.define(eq=False, kw_only=True)
class Okta(Provider):
    """developer.okta.com, custom authorization servers: one audience for all tokens, no `typ`, a list of scopes, `cid`;
    metadata behind the path of the issuer alone; a registration endpoint for administrators, with errors of its own."""

    path: str = "/oauth2/default"
    metadata_paths: ClassVar[tuple[str, ...]] = (
        "/oauth2/default/.well-known/oauth-authorization-server",
        "/oauth2/default/.well-known/openid-configuration",
    )
    endpoints: ClassVar[dict[str, str]] = {
        "authorization_endpoint": "/oauth2/default/v1/authorize",
        "token_endpoint": "/oauth2/default/v1/token",
        "jwks_uri": "/oauth2/default/v1/keys",
        "registration_endpoint": "/oauth2/v1/clients",
    }
    listed: ClassVar[dict[str, Any]] = {
        "code_challenge_methods_supported": ["S256"],
        "scopes_supported": ["openid", "profile", "email", "offline_access", "notes:read", "notes:write"],
    }
    audience: str = attrs.field(default=attrs.Factory(lambda self: self.resource, takes_self=True))

    def access_token(self, asked: dict[str, str]) -> str:
        client_id = asked["client_id"]
        subject = client_id if "grant" in asked else "ann@acme.example"
        claims = {"ver": 1, "iss": self.issuer, "aud": self.audience, "cid": client_id, "sub": subject}
        return self.signed(None, **claims, scp=asked["scope"].split())

    def registered(self, wanted: dict[str, Any]) -> Reply:
        words = "You do not have permission to perform the requested action"
        return 403, {"errorCode": "E0000006", "errorSummary": words, "errorLink": "E0000006", "errorId": "1"}


@attrs.define(eq=False, kw_only=True)
class Google(Provider):
    """developers.google.com, identity: opaque tokens, about which `tokeninfo` tells, with numbers as text; no other
    resource than Google's own; no registration; a secret even for desktop applications, and refresh tokens always."""

    metadata_paths: ClassVar[tuple[str, ...]] = ("/.well-known/openid-configuration",)
    endpoints: ClassVar[dict[str, str]] = {
        "authorization_endpoint": "/o/oauth2/v2/auth",
        "token_endpoint": "/token",
        "jwks_uri": "/oauth2/v3/certs",
    }
    listed: ClassVar[dict[str, Any]] = {
        "code_challenge_methods_supported": ["plain", "S256"],
        "scopes_supported": ["openid", "email", "profile"],
    }
    clients: dict[str, str | None] = attrs.field(
        factory=lambda: dict[str, str | None]({"407408718192.apps.googleusercontent.com": "GOCSPX-s3cret"})
    )
    scopes: set[str] = attrs.field(factory=lambda: {"openid", "email", "profile"})
    known: dict[str, dict[str, str]] = attrs.field(factory=dict[str, dict[str, str]])
    """Requests by the tokens for them."""

    def may_redirect(self, uri: str) -> bool:
        return urlsplit(uri).hostname in ("127.0.0.1", "localhost")

    def refreshes_for(self, asked: dict[str, str]) -> bool:
        return True

    def access_token(self, asked: dict[str, str]) -> str:
        token = f"ya29.a0-{len(self.known)}"
        self.known[token] = asked
        return token

    def reply(self, path: str, got: Got) -> Reply:
        if path != "/tokeninfo":
            return super().reply(path, got)
        token = got.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.known:
            return REFUSED, {"error": "invalid_token", "error_description": "Invalid Value"}
        asked = self.known[token]
        names = {"azp": asked["client_id"], "aud": asked["client_id"], "sub": "110169484474386276334"}
        times = {"exp": str(int(time.time()) + 3600), "expires_in": "3599", "access_type": "offline"}
        return 200, {**names, **times, "scope": asked["scope"]}


P = TypeVar("P", bound=Provider)


@asynccontextmanager
async def running(provider: P) -> AsyncGenerator[P]:
    """Have ``provider`` listen inside."""
    async with serving(provider.answer) as server:
        provider.origin = server.url.removesuffix("/mcp")
        yield provider
