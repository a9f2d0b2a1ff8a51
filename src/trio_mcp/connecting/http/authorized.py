"""authorized: an exchange with a token, and once more with a better one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from enum import Enum, auto
from itertools import count

import trio

from ...auth.credentials import Credentials, RefusedRequest
from ...concurrency.contexts import asynccontextmanager
from ...transports.http_client.client import HttpClient
from ...transports.http_client.reply import Reply
from ..credentials import is_challenge
from ..given_headers import Headers


class Caller(Enum):
    """Who waits for an exchange."""

    WAITS = auto()
    NONE = auto()
    LONG_SINCE = auto()
    """A caller waits where the user has not signed in yet, but for nobody to sign in anew: the client opens streams
    again by itself, and is open already."""


@asynccontextmanager
async def authorized(
    http: HttpClient,
    credentials: Credentials,
    method: str,
    headers: Headers,
    body: bytes,
    seen: Callable[[bool], None] | None,
    caller: Caller,
) -> AsyncGenerator[Reply]:
    """Send a request with the headers of ``credentials``, and wait for the head of the answer. While the server refuses
    the request by status, and so has not carried anything out, and the credentials can be had that the server asks for,
    the very same request goes out again.

    Raises as `HttpClient.request`, and `AuthorizationError`. ``seen``: see `Endpoint.post`;
    ``caller`` says whether a user is asked for the sake of the request.
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
        is_background = caller is Caller.NONE or (caller is Caller.LONG_SINCE and bool(sent))
        await credentials.refused(RefusedRequest(reply.status, challenges, sent, attempt, begun, is_background))
