"""An OAuth client by hand, request by request, which says exactly what a test wants."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import attrs
import trio
from examples.authorization.provider import press
from tests.interaction.websocket.raw_peer import port_of, serving

from trio_mcp.transports.http_client.client import HttpClient

__all__ = ["Heard", "RawClient", "claims_of", "get", "listening", "post"]

FORM = (b"Content-Type", b"application/x-www-form-urlencoded")
JSON = (b"Content-Type", b"application/json")


@attrs.frozen
class Heard:
    """What an HTTP server has answered."""

    status: int
    headers: Any
    body: Any


async def get(url: str, *headers: tuple[bytes, bytes]) -> Heard:
    """GET what is JSON, if anything."""
    return await _ask("GET", url, headers, b"")


async def post(url: str, content: dict[str, Any], *headers: tuple[bytes, bytes]) -> Heard:
    """POST a form, or what ``headers`` say: JSON."""
    if JSON in headers:
        return await _ask("POST", url, headers, json.dumps(content).encode())
    return await _ask("POST", url, [FORM, *headers], urlencode(content).encode())


async def _ask(method: str, url: str, headers: Any, body: bytes) -> Heard:
    async with (
        HttpClient(url, http_proxy=None) as client,
        client.request(method, client.target, headers, body) as reply,
    ):
        text = await reply.read(1_000_000)
        is_json = "json" in reply.headers.get("content-type", "")
        return Heard(reply.status, reply.headers, json.loads(text) if is_json else text)


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a signed token, unchecked."""
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, trio.MemoryReceiveChannel[dict[str, str]]]]:
    """A redirect URI, and the queries that arrive there."""
    send, receive = trio.open_memory_channel[dict[str, str]](10)

    async def answer(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request and (data := await stream.receive_some()):
            request += data
        target = request.split(b" ")[1].decode()
        await send.send({name: values[0] for name, values in parse_qs(urlsplit(target).query).items()})
        await stream.send_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    async with serving(trio.serve_tcp, answer, 0, host="127.0.0.1") as listeners:
        yield f"http://127.0.0.1:{port_of(listeners)}/callback", receive


@attrs.define
class RawClient:
    """A public client that is registered at ``issuer``."""

    issuer: str
    client_id: str
    redirect_uri: str
    callbacks: trio.MemoryReceiveChannel[dict[str, str]]
    metadata: dict[str, Any]

    @classmethod
    @asynccontextmanager
    async def registered(cls, issuer: str, **changes: Any) -> AsyncIterator[RawClient]:
        """A client whose metadata and registration were asked for; ``changes`` are those of the registration."""
        metadata = (await get(f"{issuer}/.well-known/oauth-authorization-server")).body
        async with listening() as (redirect_uri, callbacks):
            registration = {
                "client_name": "raw",
                "application_type": "native",
                "redirect_uris": [redirect_uri],
                "grant_types": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_method": "none",
                **changes,
            }
            heard = await post(metadata["registration_endpoint"], registration, JSON)
            assert heard.status == 201, heard
            yield cls(issuer, heard.body["client_id"], redirect_uri, callbacks, metadata)

    async def tokens(
        self, resource: str, scope: str, visit: Callable[[str], Awaitable[None]] = press
    ) -> dict[str, Any]:
        """Sign in, as a user who makes ``visit`` and allows everything, and exchange the code."""
        verifier = secrets.token_urlsafe(32)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": "a state",
            "resource": resource,
            "scope": scope,
        }
        await visit(f"{self.metadata['authorization_endpoint']}?{urlencode(query)}")
        callback = await self.callbacks.receive()
        assert (callback["state"], callback["iss"]) == ("a state", self.issuer)
        heard = await self.token(
            grant_type="authorization_code",
            code=callback["code"],
            code_verifier=verifier,
            redirect_uri=self.redirect_uri,
            resource=resource,
        )
        assert heard.status == 200, heard
        return heard.body

    async def token(self, **form: str) -> Heard:
        """Ask the token endpoint."""
        return await post(self.metadata["token_endpoint"], {"client_id": self.client_id, **form})
