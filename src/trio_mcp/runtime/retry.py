"""Retry and Seal: how a parked handler is found again (2026-07-28 mrtr)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from ..state.requests import InboundRequest

__all__ = ["Retry", "Seal"]


@attrs.frozen
class Retry:
    """What `RequestHandler.answer_now` returns for a request that brings a parked handler its answers."""

    handle: bytes
    """What `Seal` was given for that handler."""
    responses: dict[str, Any]
    """Plain objects, by the keys of the questions."""


class Seal(Protocol):
    """Makes the ``requestState`` that goes out with questions, for nobody else to read or to change."""

    def __call__(
        self,
        request: InboundRequest,
        *,
        handle: bytes = b"",
        asked: Sequence[str] = (),
        answers: Mapping[str, Any] | None = None,
        state: str = "",
    ) -> str:
        """``request`` is the one that is answered with it, and only its retry may bring it back.

        ``handle``: of the handler that is parked. For one that is not: the keys that were ``asked`` now, the
        ``answers`` so far, and the handler's own ``state``.
        """
        ...
