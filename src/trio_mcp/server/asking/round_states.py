"""RoundStates links the rounds of one modern request (2026-07-28 mrtr)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...runtime.principal import PrincipalId
from ...runtime.requests.handler import LATER, Decision
from ...runtime.requests.retry import Retry
from ...state.requests import Continuation, InboundRequest
from .state_cipher import BadRequestState, SealedState, StateCipher, fingerprint


class RoundStates:
    """Writes the ``requestState`` of one connection's requests, and reads the state in a retry.

    ``lifetime``: seconds for which a state is good. ``principal`` of its methods is the caller, where the transport
    knows the caller.
    """

    def __init__(
        self,
        cipher: StateCipher,
        lifetime: float,
    ) -> None:
        self._cipher = cipher
        self._lifetime = lifetime

    def seal(
        self,
        request: InboundRequest,
        principal: PrincipalId | None,
        *,
        handle: bytes = b"",
        asked: Sequence[str] = (),
        answers: Mapping[str, Any] | None = None,
        state: str = "",
    ) -> str:
        """Return the ``requestState`` for ``request``. See `Seal`."""
        expires = None if self._lifetime == math.inf else time.time() + self._lifetime
        return self._cipher.seal(
            SealedState(fingerprint(request), expires, principal, handle, list(asked), dict(answers or {}), state)
        )

    def read(self, request: InboundRequest, principal: PrincipalId | None) -> Decision:
        """Return how to go on with a request that may be a retry: `Retry` when a parked handler waits for the retry,
        else `LATER`, with the content of the retry in ``request.continuation``.

        Raises `CodedError` -32602 for a state that this server did not give to this caller for this very request. Where
        nothing was parked, an expired state is ignored: the handler runs from the top, and asks anew.
        """
        params = request.params
        text = params.get("requestState")
        responses = _responses(params.get("inputResponses"))
        if text is None:
            if responses:
                request.continuation = Continuation(responses)
            return LATER
        sealed = self._open(text, request, principal)
        if sealed.handle:
            # A parked handler counts its time itself, by a clock that nobody sets.
            return Retry(sealed.handle, responses)
        if sealed.expires is None or time.time() < sealed.expires:
            answered = {key: responses[key] for key in sealed.asked if key in responses}
            request.continuation = Continuation(responses, sealed.state, {**sealed.answers, **answered})
        return LATER

    def _open(self, text: object, request: InboundRequest, principal: PrincipalId | None) -> SealedState:
        try:
            sealed = self._cipher.open(text) if isinstance(text, str) else None
        except BadRequestState:
            sealed = None
        # 2026-07-28 mrtr, Server Requirements 4: MUST reject state that fails verification.
        if sealed is None or sealed.principal != principal:
            raise CodedError(INVALID_PARAMS, "Invalid params: invalid requestState: not issued to this caller")
        if sealed.fingerprint != fingerprint(request):
            raise CodedError(INVALID_PARAMS, "Invalid params: this requestState belongs to another request")
        return sealed


def _responses(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CodedError(INVALID_PARAMS, "Invalid params: inputResponses is an object")
    responses = cast("dict[str, object]", value)
    for key, response in responses.items():
        if not isinstance(response, dict):
            raise CodedError(INVALID_PARAMS, f"Invalid params: inputResponses[{key[:100]!r}] is an object")
    return responses
