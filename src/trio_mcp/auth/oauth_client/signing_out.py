"""sign_out: forget the tokens for a server, and have them revoked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from ..errors import AuthorizationError
from ..fetching.exchange import Fetcher
from ..storage.stored import Storage, StorageFailed, Stored
from .endpoints.revocation import revoke
from .grant import Situation
from .keeping.bindings import ClientBindings
from .keeping.driving import drive
from .settings import OAuthSettings

_DEADLINE: Final = 10.0
"""Seconds for all revocations together."""


async def sign_out(
    server_url: str,
    storage: Storage,
    settings: OAuthSettings,
    fetcher: Fetcher,
    *,
    now: Callable[[], float] = time.time,
) -> list[str] | None:
    """Forget the record of the server at ``server_url``, and have its tokens revoked; return the reasons why some may
    be good still, and `None` where there was no record.

    The record is gone first, readable or not; then each authorization server is asked, all within ten seconds. Raises
    `StorageFailed` where the record stays.
    """
    reasons: list[str] = []
    stored = Stored()
    async with storage.lock(server_url):
        try:
            stored = await storage.load(server_url) or stored
        except StorageFailed as error:
            reasons.append(str(error))
        if not await storage.remove(server_url):
            return None
    bindings = ClientBindings(storage)
    with trio.move_on_after(_DEADLINE) as patience:
        for issuer in stored.issuers:
            situation = Situation(server_url=server_url, stored=stored, now=now, bindings=bindings)
            try:
                await drive(revoke(settings, situation, issuer), fetcher, None, _nothing, bindings.settle)
            except AuthorizationError as error:
                reasons.append(str(error))
    if patience.cancelled_caught:
        reasons.append(f"the authorization server has not answered within {_DEADLINE:g} s")
    return reasons


def _nothing() -> None:
    """Do nothing: leaving a revocation halfway harms nobody."""
