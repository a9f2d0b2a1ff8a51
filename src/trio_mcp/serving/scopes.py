"""Scopes at an endpoint: callers that lack one, and endpoints where nobody checks."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST, CodedError
from ..runtime.peer import CheckScopes
from ..runtime.principal import Auth
from ..server.served import Running, needs_scopes

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Gate
    from ..auth.resource_server.refusals import Refusal

logger = logging.getLogger("trio_mcp")


class LacksScopes(CodedError):
    """The error for a caller who lacks a scope, with the ``refusal`` in the words of HTTP."""

    def __init__(self, refusal: Refusal, needed: frozenset[str]) -> None:
        data = {"error": "insufficient_scope", "scopes": sorted(needed)}
        super().__init__(INVALID_REQUEST, f"Invalid request: {refusal.reason}", data)
        self.refusal = refusal


def lacking(refusal: Refusal, needed: frozenset[str]) -> CodedError:
    """Return the error for a request of a caller who lacks one of the ``needed`` scopes."""
    if refusal.status != HTTPStatus.FORBIDDEN:  # a defect, of the author's rule for broader scopes
        return CodedError(INTERNAL_ERROR, "Internal error")
    return LacksScopes(refusal, needed)


def scope_check(gate: Gate, auth: Auth) -> CheckScopes:
    """Return the check of all requests of one caller."""
    return partial(_check, gate, auth)


def _check(gate: Gate, auth: Auth, needed: frozenset[str]) -> None:
    if needed and (refusal := gate.missing(auth, needed)) is not None:
        raise lacking(refusal, needed)


def warn_of_unchecked_scopes(running: Running, gate: Gate | None) -> None:
    """Log a warning where ``running`` has scopes, and no ``gate`` that would know those of a caller."""
    if gate is None and needs_scopes(running):
        logger.warning(
            "tools, resources or prompts of this server need scopes, and nobody checks them: serve it with auth=..."
        )
