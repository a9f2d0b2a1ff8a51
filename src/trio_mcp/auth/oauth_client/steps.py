"""Step: what a machine without I/O asks its driver to do."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

import attrs

from ..fetching.exchange import Fetch

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Visit:
    """Have the user visit ``url``, and wait until their browser is sent to ``redirect_uri``. The outcome is the URL
    that it was sent to, as `str`, query included."""

    url: str = attrs.field(repr=False)
    redirect_uri: str


Step: TypeAlias = Fetch | Visit
"""A `Fetch`, whose outcome is a `Fetched` (or `FetchFailed`, thrown into the machine), or a `Visit`."""

Machine: TypeAlias = Generator[Step, Any, T]
"""A machine that ends with a ``T``, or raises `AuthorizationError`."""
