"""Bearer: the authorization of those who have a token."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import attrs
import trio

from ...concurrency.contexts import asynccontextmanager
from ..credentials import Credentials, RefusedRequest, UserIsAsked
from ..errors import AuthorizationError
from ..own_functions import telling

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750 section 2.1."""
_MOST_ATTEMPTS: Final = 2


def _is_token(_: Any, __: Any, token: str | Callable[[], Awaitable[str]]) -> None:
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise ValueError("a bearer token has no other characters than letters, digits and -._~+/ with = at the end")


@attrs.frozen
class Bearer:
    """Authorizes each request with a token that is at hand, without any OAuth.

    ``token`` is the token, or an async function that returns the present token. The function is called for each
    request, so good tokens are for the function to keep; when the server refuses a token, the function is called again,
    and another token is tried once. Raises `ValueError` for what no header can carry.
    """

    token: str | Callable[[], Awaitable[str]] = attrs.field(validator=_is_token, repr=False)

    @asynccontextmanager
    async def opened(self, server_url: str, user_is_asked: UserIsAsked) -> AsyncGenerator[Credentials]:
        """Return the credentials: see `ClientAuth.opened`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        yield _BearerCredentials(self.token)


class _BearerCredentials:
    def __init__(self, token: str | Callable[[], Awaitable[str]]) -> None:
        self._token = token

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        return ((b"Authorization", f"Bearer {await self._present()}".encode("ascii")),)

    async def _present(self) -> str:
        if isinstance(self._token, str):
            return self._token
        with telling("the function that returns the token"):
            token = await self._token()
        if not _TOKEN.fullmatch(token):
            raise AuthorizationError("the function that returns the token returned what no header can carry")
        return token

    def noticed(self, headers: Mapping[str, str]) -> None:
        pass

    async def refused(self, request: RefusedRequest) -> None:
        is_old = request.status == HTTPStatus.UNAUTHORIZED and not isinstance(self._token, str)
        if is_old and request.attempt < _MOST_ATTEMPTS and await self.headers("GET") != request.sent:
            return
        raise AuthorizationError(f"the server refuses the token with HTTP status {request.status}")
