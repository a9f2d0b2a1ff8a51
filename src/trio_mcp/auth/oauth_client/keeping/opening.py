"""open_keeper opens the keeper of the tokens for one server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from typing import Literal

from ....concurrency.contexts import asynccontextmanager
from ....concurrency.nurseries import open_service_nursery
from ....transports.host_checks import is_loopback
from ....transports.http_client.origin import split_url
from ...credentials import Credentials
from ...fetching.fetcher import HttpFetcher
from ...fetching.url_rules import UrlRules
from ...storage.stored import Storage
from .token_keeper import TokenKeeper
from .token_source import TokenSource


@asynccontextmanager
async def open_keeper(
    server_url: str,
    source: TokenSource,
    storage: Storage,
    *,
    is_dpop: bool,
    public_addresses_only: bool,
    ssl_context: ssl.SSLContext | None,
    proxy: str | Literal[True] | None,
) -> AsyncGenerator[Credentials]:
    """Open the keeper of the tokens for one server. Raises `ValueError` for a server that no token is sent to, since
    others could read the token on the way (OAuth 2.1, draft 13, section 1.5)."""
    origin = split_url(server_url)[0]
    if not origin.secure and not is_loopback(origin.host):
        raise ValueError(f"no token is sent to {origin} in plain text: the server needs https")
    rules = UrlRules.for_server(server_url, public_addresses_only=public_addresses_only)
    fetcher = HttpFetcher(rules, ssl_context=ssl_context, proxy=proxy)
    async with open_service_nursery("the client was closed") as nursery:
        keeper = TokenKeeper(server_url, source, storage, fetcher, nursery, is_dpop=is_dpop)
        try:
            yield keeper
        finally:
            keeper.close()
