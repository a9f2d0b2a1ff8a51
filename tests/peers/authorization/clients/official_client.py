"""The client of the official ``mcp`` package with OAuth, telling what it saw.

python official_client.py legacy|modern URL
"""

import sys
from functools import partial
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from browser import sign_in
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from report import Report

MODES = {"legacy": "legacy", "modern": "auto"}
REDIRECT_URI = "http://localhost:3000/callback"
report = Report()
visits: list[dict[str, str]] = []
callbacks: list[str] = []


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


class Storage:
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


async def visit(url: str) -> None:
    visits.append(query_of(url))
    callbacks.append(await anyio.to_thread.run_sync(sign_in, url, REDIRECT_URI))


async def callback() -> AuthorizationCodeResult:
    query = query_of(callbacks[-1])
    return AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query.get("iss"))


async def main(era: str, url: str) -> None:
    metadata = OAuthClientMetadata(redirect_uris=[REDIRECT_URI], client_name="official", application_type="native")
    auth = OAuthClientProvider(url, metadata, Storage(), visit, callback)

    async def call(tool: str):
        return (await client.call_tool(tool)).structured_content

    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=MODES[era]) as client,
    ):
        await report.step("whoami", call, "whoami")
        await report.step("write", call, "write")
        await report.step("whoami again", call, "whoami")
    report.tell("asked for", saw=[[visit.get("resource"), visit.get("scope")] for visit in visits])


anyio.run(partial(main, *sys.argv[1:]))
