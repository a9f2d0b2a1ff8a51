"""Auth: the caller of a request, as far as known to the transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Auth"]


@attrs.frozen
class Auth:
    """The caller of a request. Never ``valid`` where the transport has no authentication, as on stdio and in memory."""

    valid: bool = False
    subject: str | None = None
    """The caller's identity, in the words of the party that vouches for the caller."""
    scopes: tuple[str, ...] = ()
    """Permissions of the caller."""
    extra: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Further facts that were vouched for."""
