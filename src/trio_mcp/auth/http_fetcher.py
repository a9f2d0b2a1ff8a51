"""HttpFetcher: carries out requests to URLs that a stranger has named, one connection for each."""

from __future__ import annotations

import ssl
from typing import Final, Literal

import attrs
import trio

from ..classes import frozen
from ..runtime.transport import ConnectionLost
from ..transports.http_client.client import HttpClient
from ..transports.http_client.origins import Origin, is_of_this_machine
from .fetching import Fetch, Fetched, FetchFailed, UrlRules

_LONGEST_BODY: Final = 256 * 1024


@frozen
class HttpFetcher:
    """A `Fetcher` that follows ``rules``. No redirect is followed, and no compressed answer is read."""

    rules: UrlRules
    deadline: float = attrs.field(default=30.0, kw_only=True)
    """Seconds for all of an exchange, from looking up the name to the end of the body."""
    max_bytes: int = attrs.field(default=_LONGEST_BODY, kw_only=True)
    """Most bytes of the body of an answer."""
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, kw_only=True, repr=False)
    """Replaces the system's usual one."""
    proxy: str | Literal[True] | None = attrs.field(default=True, kw_only=True, repr=False)
    """The URL of an HTTP proxy, `None` for none, `True` for the one that the environment names. A proxy looks up names
    itself, so with `UrlRules.public_addresses_only` the one of the environment is not used. A proxy that is given
    here is used, and has to check the addresses of names. URLs of this machine, as all with ``http`` are, are asked
    without a proxy."""

    async def fetch(self, request: Fetch) -> Fetched:
        """Return the answer to ``request``: see `Fetcher.fetch`."""
        origin = self.rules.check(request.url)
        failure = f"no whole answer within {self.deadline:g} s"
        try:
            with trio.move_on_after(self.deadline):
                return await self._exchange(request, origin)
        except UnicodeEncodeError:  # whose words have a character of a secret
            failure = "a header that is not ASCII cannot be sent"
        except (ConnectionLost, ValueError) as error:
            failure = str(error)
        raise FetchFailed(f"{request.method} {origin}: {failure}")

    async def _exchange(self, request: Fetch, origin: Origin) -> Fetched:
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in request.headers]
        if request.content_type is not None:
            headers.append((b"Content-Type", request.content_type.encode("ascii")))
        async with (
            HttpClient(
                request.url,
                ssl_context=self.ssl_context if origin.secure else None,
                proxy=self._proxy_for(origin),
                allows=self.rules.address_rule(origin),
                follow_redirects=False,
            ) as client,
            client.request(request.method, client.target, headers, request.body) as reply,
        ):
            return Fetched(status=reply.status, headers=reply.headers, body=await reply.read(self.max_bytes))

    def _proxy_for(self, origin: Origin) -> str | Literal[True] | None:
        if is_of_this_machine(origin.host) or (self.proxy is True and self.rules.public_addresses_only):
            return None
        return self.proxy
