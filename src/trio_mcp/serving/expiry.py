"""The end of a caller's token, by the clock of trio."""

from __future__ import annotations

import math
import time

import trio

from ..runtime.principal import Auth


def end_of_token(auth: Auth | None) -> float:
    """Return the time at which the token of ``auth`` ends; infinite where nobody knows, or nothing is protected."""
    expires_at = None if auth is None else auth.principal.expires_at
    return math.inf if expires_at is None else trio.current_time() + expires_at - time.time()
