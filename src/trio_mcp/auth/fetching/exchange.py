"""Fetch and Fetched: one exchange with a URL that a stranger has named, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import attrs


class FetchFailed(Exception):
    """The exchange brought no answer, or was not tried, since the URL is forbidden. The message has no secret, and is
    for the people who run the client alone."""


@attrs.frozen(kw_only=True)
class Fetch:
    """A request. Headers and form are secrets, as far as ``secrets_of`` says so."""

    method: Literal["GET", "POST"]
    url: str
    headers: Sequence[tuple[str, str]] = attrs.field(default=(), repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str | None = None
    """The type of ``body``; `None` without one."""
    secrets_of: str | None = None
    """The issuer whose credentials, codes or tokens the request carries; `None`: none at all."""


@attrs.frozen(kw_only=True)
class Fetched:
    """The answer to a `Fetch`."""

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Values by names in lower case."""
    body: bytes = attrs.field(repr=False)


class Fetcher(Protocol):
    """Whoever carries out a `Fetch`."""

    async def fetch(self, request: Fetch) -> Fetched:
        """Return the answer, whatever its status; redirects are answers like others. Raises `FetchFailed`."""
        ...
