"""authorized: an exchange with a token, and once more with a better one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from itertools import count

import trio

from ...auth.credentials import Credentials, RefusedRequest
from ...concurrency.contexts import asynccontextmanager
from ...transports.http_client.client import HttpClient
from ...transports.http_client.reply import Reply
from ..credentials import is_challenge
from .request_headers import Headers

__all__ = ["authorized"]


@asynccontextmanager
async def authorized(
    http: HttpClient,
    credentials: Credentials,
    method: str,
    headers: Headers,
    body: bytes,
    seen: Callable[[bool], None] | None,
) -> AsyncGenerator[Reply]:
    """Send a request with the headers of ``credentials``, and wait for the head of the answer. While the server refuses
    the request by status, and so has not carried anything out, and the credentials can get what the server asks for,
    the very same request goes out again.

    Raises as `HttpClient.request`, and `AuthorizationError`. ``seen``: see `Endpoint.post`.
    """
    begun = trio.current_time()
    for attempt in count(1):
        sent = await credentials.headers(method)
        if seen is not None:
            seen(True)
        async with http.request(method, http.target, [*headers, *sent], body) as reply:
            credentials.noticed(reply.headers)
            # Nobody is asked for anything in order to say farewell.
            if method == "DELETE" or not is_challenge(reply.status, reply.headers):
                yield reply
                return
        if seen is not None:
            seen(False)
        challenges = reply.headers.get("www-authenticate", "")
        await credentials.refused(RefusedRequest(reply.status, challenges, sent, attempt, begun))
