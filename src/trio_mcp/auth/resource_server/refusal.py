"""Refusal: why a request is not served, in the words of HTTP."""

from __future__ import annotations

from http import HTTPStatus

import attrs


@attrs.frozen
class Refusal:
    """The answer to a request whose caller is not known, or may not do this."""

    status: HTTPStatus
    reason: str
    """A sentence for the client's people, which tells nothing internal."""
    headers: tuple[tuple[str, str], ...] = ()
    """``WWW-Authenticate``, and ``DPoP-Nonce`` where a proof needs one."""
