"""Retry and Seal: how a parked handler is found again (2026-07-28 mrtr)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from ...state.requests import InboundRequest
    from ..principal import PrincipalId


@attrs.frozen
class Retry:
    """Result of `RequestHandler.answer_now` for a request that brings a parked handler its answers."""

    handle: bytes
    """Handle that `Seal` was given for the parked handler."""
    responses: dict[str, Any]
    """Answers as plain objects, by the keys of the questions."""


class Seal(Protocol):
    """Makes the ``requestState`` that goes out with questions, which no other party can read or change."""

    def __call__(
        self,
        request: InboundRequest,
        principal: PrincipalId | None,
        *,
        handle: bytes = b"",
        asked: Sequence[str] = (),
        answers: Mapping[str, Any] | None = None,
        state: str = "",
    ) -> str:
        """Return the state with which ``request`` is answered; only the retry of ``request`` may bring the state back.

        ``handle``: the handle of the parked handler. For a handler that is not parked: the keys that were ``asked``
        now, the ``answers`` so far, and the handler's own ``state``.
        """
        ...
