"""HostileWeb: servers that answer anything, and an account of whose each secret is.

Each secret has a tag of its own, so that a request tells whose secrets are in it, however they are encoded. A document
is believed to be of an issuer where it stands at a location of that issuer and names the issuer: the only belief there
is, written here once more, without the code under test. A slash at the end makes no other issuer.
"""

from __future__ import annotations

import json
import re
import traceback
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import attrs
from tests.auth.oauth_client.scripted_web import answer

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed
from trio_mcp.auth.oauth_client.grants import Grant, GrantContext, Machine, Visit
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization, Tokens

T = TypeVar("T")

SERVER = "https://mcp.example/mcp"
REDIRECT = "http://127.0.0.1:41234/callback"
NOW = 1_800_000_000.0
MOST_STEPS = 16

ISSUERS = (
    "https://honest.example",
    "https://evil.example",
    "https://honest.example/tenant",
    "https://mcp.example",
    "https://evil.example/honest.example/",
    "https://idp.example",
    "https://honest.example/",
    "https://honest.example:443",
    "https://HONEST.example",
    "https://honest.example@evil.example",
    "https://evil.example/?https://honest.example",
    "http://honest.example",
    "honest.example",
)
ENDPOINTS = tuple(
    f"{base}/{name}"
    for base in ("https://honest.example", "https://evil.example", "https://mcp.example", "http://evil.example", "x:y")
    for name in ("token", "authorize", "register", "token?x=1", "token#x")
)
ENDLESS = "x" * 5000
TAG = re.compile(r"(?:SECRET|ACCESS|ID)-\d+-")


def locations_of(issuer: str) -> tuple[str, ...]:
    """The URLs at which metadata of ``issuer`` may stand."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        return ()
    base, path = f"{parts.scheme}://{parts.netloc.lower().removesuffix(':443')}", parts.path.rstrip("/")
    oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    return (f"{base}{oauth}{path}", f"{base}{openid}{path}", f"{base}{path}{openid}")


def bare(*issuers: str) -> set[str]:
    """The issuers without the slash at the end."""
    return {issuer.removesuffix("/") for issuer in issuers}


def plain(url: str) -> str:
    """The URL without its query, in the one form that URLs of the same endpoint have here."""
    return url.partition("?")[0].lower().replace(":443/", "/")


@attrs.define
class HostileWeb:
    """``choose`` takes one of several: what a fuzzer, or hypothesis, decides."""

    choose: Callable[[Sequence[Any]], Any]
    owners: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    """Issuers that may see a secret, by its tag; none for access tokens."""
    granted: dict[str, str] = attrs.field(factory=dict[str, str])
    """Issuers that have granted a token, by its tag."""
    documents: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    """The metadata that are to be believed."""
    endpoints: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    """Issuers and token endpoints that nobody has to publish."""
    unbound: set[str] = attrs.field(factory=set[str])
    """Issuers that have seen the credentials that belong to the first one."""
    steps: list[Fetch | Visit] = attrs.field(factory=list[Fetch | Visit])
    private: set[str] = attrs.field(factory=set[str])
    """State and verifier: in no error, and the latter in no URL."""
    registered: dict[str, RegisteredClient] = attrs.field(factory=dict[str, RegisteredClient])
    """Clients that are kept, by issuer, whatever else is."""
    over: bool = False
    """True where nothing may be asked any more."""
    _numbers: Any = attrs.field(factory=count)
    _calm: int = attrs.field(init=False)
    """How much more often servers say the usual thing than each of the other things."""

    def __attrs_post_init__(self) -> None:
        self._calm = self.choose((1, 4, 20))

    def usually(self, usual: Any, *others: Any) -> Any:
        return self.choose((usual,) * self._calm * len(others) + others)

    # Secrets

    def secret(self, *owners: str) -> str:
        tag = f"SECRET-{next(self._numbers)}-"
        self.owners[tag] = bare(*owners)
        return tag

    def access_token(self, issuer: str) -> str:
        tag = f"ACCESS-{next(self._numbers)}-"
        self.owners[tag] = set()
        self.granted[tag] = issuer.removesuffix("/")
        return tag

    def client_id(self, *owners: str) -> str:
        tag = f"ID-{next(self._numbers)}-"
        self.owners[tag] = bare(*owners)
        return tag

    def assertion(self, issuer: str) -> str:
        claims = urlsafe_b64encode(json.dumps({"aud": issuer}).encode()).decode().rstrip("=")
        return f"e30.{claims}.{self.secret(issuer, issuer.rstrip('/'), f'{issuer}/')}"

    def stored(self) -> StoredAuthorization:
        """What was kept of some issuers before."""
        issuers = {issuer: IssuerRecord(client=client) for issuer, client in self.registered.items()}
        for issuer in ISSUERS[:5]:
            if issuer not in issuers and self.choose((True, False, False)):
                issuers[issuer] = IssuerRecord(
                    client=RegisteredClient(
                        client_id=self.client_id(issuer),
                        client_secret=self.choose((None, self.secret(issuer))),
                        secret_expires_at=self.choose((None, None, NOW - 1)),
                        auth_method=self.choose(("none", "client_secret_basic", "client_secret_post", "odd")),
                        redirect_uris=self.choose(((REDIRECT,), (REDIRECT,), ("http://127.0.0.1/",), ())),
                    ),
                    tokens=Tokens(access_token=self.access_token(issuer), refresh_token=self.secret(issuer)),
                    requested_scopes=self.choose(((), ("old",))),
                )
        return StoredAuthorization(issuers=issuers, current=self.choose((None, *issuers)))

    def context(self, proofs: Any = None) -> GrantContext:
        challenge = self.choose(
            (
                None,
                Challenge("bearer", {"scope": "read"}),
                Challenge("bearer", {"resource_metadata": "https://mcp.example/custom"}),
                Challenge("dpop", {"error": "insufficient_scope", "scope": "write"}),
                Challenge("bearer", {"resource_metadata": self.choose(ENDPOINTS)}),
                Challenge("bearer", {"resource_metadata": "javascript:alert(1)", "scope": 'x" y\\'}),
            )
        )
        return GrantContext(
            server_url=SERVER, stored=self.stored(), challenge=challenge, now=lambda: NOW, proof_key=proofs
        )

    # The law

    def run(self, machine: Machine[Grant]) -> Grant | AuthorizationError:
        """Carry out the steps, each checked before its outcome is made up."""
        outcome: Any = None
        try:
            while True:
                step = machine.throw(outcome) if isinstance(outcome, Exception) else machine.send(outcome)
                self.steps.append(step)
                assert len(self.steps) <= MOST_STEPS
                assert not self.over, "an answer that is another's ends the way"
                outcome = self._visited(step) if isinstance(step, Visit) else self._fetched(step)
        except StopIteration as end:
            assert not self.over
            self._check_grant(end.value)
            return end.value
        except AuthorizationError as error:
            told = "".join(traceback.format_exception(error)) + repr(error) + str(error.code)
            assert not TAG.search(told)
            assert not any(text in told for text in self.private)
            return error

    def _tags(self, *texts: str) -> set[str]:
        return {tag for text in texts for tag in TAG.findall(text)}

    def _check_grant(self, grant: Grant) -> None:
        record = grant.record
        assert record.tokens is not None
        assert (record.tokens.access_token + (record.tokens.refresh_token or "")).isprintable()
        kept = json.dumps(attrs.asdict(record))
        for tag in self._tags(kept):
            owners = self.owners[tag] or {self.granted.get(tag)}
            assert owners & {"*", *bare(grant.issuer)}, "kept where it belongs"

    def _check_secrets(self, fetch: Fetch, form: dict[str, str]) -> None:
        issuer = fetch.secrets_of
        assert issuer is not None
        known = {(document["issuer"], document.get("token_endpoint")) for document in self.documents}
        assert (issuer, fetch.url) in known | self.endpoints, "the endpoint is the one that the issuer has named"
        basic = dict(fetch.headers).get("authorization", "Basic ").removeprefix("Basic ")
        named = unquote_plus(b64decode(basic).decode())
        for tag in self._tags(named, *form.values(), *dict(fetch.headers).values(), fetch.url):
            assert not tag.startswith("ACCESS"), "an access token is for its resource alone"
            if "*" in self.owners[tag]:
                self.unbound |= bare(issuer)
                assert len(self.unbound) == 1
            else:
                assert bare(issuer) <= self.owners[tag], "a secret is for its issuer alone"
        if "client_assertion" in form:
            claims = form["client_assertion"].split(".")[1]
            assert json.loads(urlsafe_b64decode(claims + "=="))["aud"] == issuer
        if "code_verifier" in form:
            self.private.add(form["code_verifier"])
            assert not any(form["code_verifier"] in step.url for step in self.steps)

    # What the servers say

    def _fetched(self, fetch: Fetch) -> Any:
        if fetch.method == "GET":
            assert fetch.secrets_of is None
            assert not fetch.body
            assert not self._tags(fetch.url, str(fetch.headers))
            return self.usually(self._document, self._failure)(fetch)
        if fetch.secrets_of is None:
            assert not self._tags(fetch.url, str(fetch.headers), fetch.body.decode()), "a registration has no secret"
            return self.usually(self._registration, self._failure)(fetch)
        form = dict(parse_qsl(fetch.body.decode(), strict_parsing=True))
        self._check_secrets(fetch, form)
        return self.usually(self._token, self._failure, self._echo)(fetch, form)

    def _failure(self, *_: object) -> Any:
        return self.choose(
            (
                answer(b"", 404),
                answer(b"", 302, {"location": "https://evil.example/token"}),
                answer(b"", 500),
                answer(b"<html>", 200),
                answer(b"{", 200),
                answer(b"\xff{}", 200),
                answer(b"[" * 5000, 200),
                answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "nonce"}),
                answer({"error": "invalid_client"}, 401),
                answer({"error": "invalid_grant"}, self.choose((200, 400, 401))),
                FetchFailed("forbidden"),
            )
        )

    def _document(self, fetch: Fetch) -> Fetched:
        if not fetch.url.partition("/.well-known/")[2].startswith(("oauth-authorization-server", "openid-")):
            document: dict[str, Any] = {
                "resource": self.usually(SERVER, "https://mcp.example/", "https://evil.example/mcp", 7),
                "authorization_servers": [
                    self.usually(self.choose(ISSUERS[:4]), *ISSUERS[4:]) for _ in range(self.usually(1, 2, 0))
                ],
                "scopes_supported": self.usually(None, ["read"], [ENDLESS], [""]),
            }
        else:
            own = [issuer for issuer in ISSUERS if fetch.url in locations_of(issuer)]
            issuer = self.usually(self.choose(own or ISSUERS), self.choose(ISSUERS))
            base = self.usually(issuer.rstrip("/"), "https://evil.example")
            document = {
                "issuer": issuer,
                **{
                    f"{name}_endpoint": self.usually(f"{base}/{path}", self.choose(ENDPOINTS), None)
                    for name, path in (("token", "token"), ("authorization", "authorize"), ("registration", "register"))
                },
                "code_challenge_methods_supported": self.usually(["S256"], ["plain"], None),
                "token_endpoint_auth_methods_supported": self.choose(
                    (None, ["none"], ["client_secret_basic"], ["client_secret_post"], ["private_key_jwt"], [])
                ),
                "scopes_supported": self.choose((None, ["offline_access"])),
                "authorization_response_iss_parameter_supported": self.choose((None, True, False)),
                "client_id_metadata_document_supported": self.choose((None, True)),
            }
            if fetch.url in locations_of(issuer):
                self.documents.append(document)
        # With a scope longer than any, nobody reads the document, and the next one may be asked for.
        self.over = document.get("resource") == "https://evil.example/mcp" and document["scopes_supported"] != [ENDLESS]
        return answer(document)

    def _registration(self, fetch: Fetch) -> Fetched:
        owners = {each["issuer"] for each in self.documents if each.get("registration_endpoint") == fetch.url}
        if fetch.url == "https://mcp.example/register":
            owners.add("https://mcp.example")
        assert owners, "an endpoint that an issuer has named"
        made = {
            "client_id": self.usually(self.client_id(*owners), "", 7),
            "client_secret": self.choose((None, self.secret(*owners))),
            "client_secret_expires_at": self.usually(None, 0, NOW + 60, NOW - 60, "later"),
            "token_endpoint_auth_method": self.choose((None, "none", "client_secret_basic", "private_key_jwt")),
        }
        return answer(made, 201)

    def _token(self, fetch: Fetch, form: dict[str, str]) -> Fetched:
        issuer = fetch.secrets_of
        assert issuer is not None
        jag = "urn:ietf:params:oauth:token-type:id-jag"
        if "subject_token" in form and self.usually(True, False):
            grant = self.secret(form["audience"])
            return answer({"access_token": grant, "issued_token_type": jag, "token_type": "N_A"})
        granted = {
            "access_token": self.access_token(issuer) + self.usually("", "\r\nCookie: x", "\x00"),
            "token_type": self.usually("Bearer", "bearer", "DPoP", "mac", 7),
            "expires_in": self.usually(3600, None, -1, "x", 1e300),
            "refresh_token": self.usually(self.secret(issuer), None, "a\nb"),
            "scope": self.usually(None, "read", "wider than asked", 7),
        }
        return answer({name: value for name, value in granted.items() if value is not None})

    def _echo(self, _: Fetch, form: dict[str, str]) -> Fetched:
        """Everything that was sent, where errors are."""
        text = self.choose((*form.values(), "access_denied"))
        return answer({"error": text, "error_description": text}, self.choose((200, 400, 500)))

    def _visited(self, visit: Visit) -> str:
        query = dict(parse_qsl(urlsplit(visit.url).query))
        endpoint = plain(visit.url)
        owners = {each["issuer"] for each in self.documents if endpoint == plain(each["authorization_endpoint"] or "")}
        if endpoint == "https://mcp.example/authorize":
            owners.add("https://mcp.example")
        assert owners, "an endpoint that an issuer has named"
        for tag in self._tags(*query.values()):
            assert tag.startswith("ID"), "a URL has no secret"
            assert "*" in self.owners[tag] or bare(*owners) & self.owners[tag], "an id is for its issuer alone"
        self.private.add(query["state"])
        parameters = {
            "code": self.usually(self.secret(*owners), None),
            "state": self.usually(query["state"], "other", None),
            "iss": self.usually(self.choose(sorted(owners)), None, "https://evil.example"),
            "error": self.usually(None, "access_denied", query["state"]),
        }
        answered = urlencode({name: value for name, value in parameters.items() if value is not None})
        self.over = parameters["state"] != query["state"] or parameters["iss"] not in (None, *owners)
        return self.usually(f"{REDIRECT}?{answered}", f"{REDIRECT}?{answered}&state=x", "http://[", "")
