"""Auth: who calls, as far as the transport knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Auth"]


@attrs.frozen
class Auth:
    """Who calls. Never ``valid`` where the transport has no authentication, as on stdio and in memory."""

    valid: bool = False
    subject: str | None = None
    """Who it is, in the words of whoever vouches for it."""
    scopes: tuple[str, ...] = ()
    """What it may do."""
    extra: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """What else was vouched for."""
