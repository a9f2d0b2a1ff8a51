"""RoundStates links the rounds of one modern request by its ``requestState`` (2026-07-28 mrtr).

`StateCipher` seals the state, which a client keeps for its server: only the server can read or change the state.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

import msgspec

from ..classes import frozen
from ..jsonrpc.base64url import decode_base64url
from ..jsonrpc.codec import decode_value
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, CodedError
from ..runtime.peer import Peer, PrincipalId
from ..runtime.requests.host import LATER, Decision
from ..runtime.requests.rounds import Retry
from ..state.requests import Continuation, InboundRequest
from ..stores.sealing import KeyRing, check_secrets


@frozen(eq=False)
class RoundStates:
    """Writes the ``requestState`` of one connection's requests, and reads the state in a retry.

    ``lifetime``: seconds for which a state is good. ``exists``: whether what a request names exists for its caller
    still. ``replica``: the id of this process, where others may take the retries. ``principal`` of `seal` is the
    caller, where the transport knows the caller.
    """

    _cipher: StateCipher
    _lifetime: float
    _exists: Callable[[InboundRequest, Peer], bool] = lambda _, __: True
    _replica: str = ""

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
        replica = self._replica if handle else ""
        kept = dict(answers or {})
        return self._cipher.seal(
            SealedState(fingerprint(request), expires, principal, handle, list(asked), kept, state, replica)
        )

    def read(self, request: InboundRequest, peer: Peer) -> Decision:
        """Return how to go on with a request that may be a retry: `Retry` when a parked handler waits for the retry,
        else `LATER`, with the content of the retry in ``request.continuation``: a `RemoteRetry`, where the handler
        is parked in another replica.

        Raises `CodedError` -32602 for a state that this server did not give to this caller for this very request. Where
        nothing was parked, an expired state is ignored: the handler runs from the top, and asks anew.
        """
        params = request.params
        text, given = params.get("requestState"), params.get("inputResponses")
        if text is None and given is None:
            return LATER
        responses = _responses(given)
        if text is None:
            if responses:
                request.continuation = Continuation(responses)
            return LATER
        sealed = self._open(text, request, peer.principal)
        if sealed.handle and self._exists(request, peer):
            # A parked handler counts its time itself, by a clock that nobody sets.
            if self._replica and sealed.replica not in ("", self._replica):
                request.continuation = RemoteRetry(responses, handle=sealed.handle, replica=sealed.replica)
                return LATER
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


@frozen(kw_only=True)
class RemoteRetry(Continuation):
    """A retry whose handler is parked in another process."""

    handle: bytes
    """Handle that `Seal` was given for the parked handler."""
    replica: str
    """The id of that process."""


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


_LONGEST: Final = 4 * 1024 * 1024
"""Limit in characters. A longer text was never sealed here, and is refused at the cost of looking at its length."""
_PURPOSE: Final = b"trio-mcp requestState 1 "


class BadRequestState(ValueError):
    """A ``requestState`` that was changed on its way, or was sealed with none of the secrets."""


class SealedState(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a ``requestState`` (2026-07-28 mrtr, Server Requirements 5: principal, expiry and request)."""

    fingerprint: bytes
    """Digest of the request that may bring the state back."""
    expires: float | None
    """Seconds since the epoch, since another process may have to judge the state. `None`: never."""
    principal: PrincipalId | None
    """Caller who may bring the state back, where the transport knows who calls."""
    handle: bytes
    """Name of the handler that is parked; empty when none is."""
    asked: list[str]
    """The keys of the questions that were asked with this state."""
    answers: dict[str, Any]
    """The answers of all rounds before."""
    state: str
    """The handler's own text."""
    replica: str = ""
    """The process in which the handler is parked; empty where it can be no other one than this."""


class StateCipher:
    """Seals and opens states with AES-256-GCM, under keys derived from the ``shared`` secrets for the server ``name``.

    The first secret seals, and each opens, so that a new secret can be put in front while states sealed by the old
    secret are still out. Processes that share a secret open each other's states. Raises `ValueError` for a secret of
    less than 32 bytes, and `TypeError` for text. Without any, a random secret lives as long as this object.
    """

    def __init__(self, name: str, shared: Sequence[bytes] = ()) -> None:
        # Different servers that share a secret do not accept each other's states.
        self._name = name.encode(errors="surrogatepass")
        self._secrets = check_secrets(shared) or (secrets.token_bytes(32),)

    def keys_for(self, purpose: bytes) -> KeyRing:
        """Return the keys for another ``purpose``, of the same server."""
        return KeyRing(self._secrets, purpose + self._name)

    def secret_for(self, purpose: bytes) -> bytes:
        """Return a derived secret for ``purpose``, the same in all processes with the same first secret."""
        return hmac.digest(self._secrets[0], purpose + self._name, "sha256")

    @cached_property
    def _keys(self) -> KeyRing:
        return self.keys_for(_PURPOSE)

    def seal(self, content: SealedState) -> str:
        """Return ``content`` sealed, as text. Raises `CodedError` (-32603) for content too large to carry around."""
        sealed = self._keys.seal(msgspec.json.encode(content), _PURPOSE)
        text = base64.urlsafe_b64encode(sealed).decode()
        if len(text) > _LONGEST:
            raise CodedError(INTERNAL_ERROR, "Internal error: the answers so far are too long to be carried on")
        return text

    def open(self, text: str) -> SealedState:
        """Return the content that was sealed. Raises `BadRequestState`; the caller checks the expiry."""
        if len(text) > _LONGEST:
            raise BadRequestState("too long")
        try:
            sealed = decode_base64url(text)
        except ValueError:
            raise BadRequestState("not base64") from None
        if base64.urlsafe_b64encode(sealed).decode() != text:  # base64 has several texts for the same bytes
            raise BadRequestState("not spelled as it was given")
        try:
            return msgspec.json.decode(self._keys.open(sealed, _PURPOSE), type=SealedState)
        except (ValueError, msgspec.MsgspecError):
            raise BadRequestState("sealed with none of our secrets, or changed") from None


def fingerprint(request: InboundRequest) -> bytes:
    """Return a digest of the method and of the parameters that identify the request, the same for any order of
    parameters."""
    params = request.params
    arguments = params.get("arguments")
    if type(arguments) is msgspec.Raw:  # see `InboundRequest.put_away`
        arguments = decode_value(bytes(arguments))
    salient = [request.method.name, params.get("name"), params.get("uri"), arguments]
    return hashlib.sha256(msgspec.json.encode(salient, order="sorted")).digest()
