"""Creates and reads the ``requestState`` with which a client retries a request, after answering the server's input
requests (2026-07-28 mrtr).

`StateCipher` encrypts the state. A client stores it for the server, and can neither read nor change it.
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
from ..jsonrpc.codec import decode_base64url, decode_value
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, CodedError
from ..runtime.peer import Peer, PrincipalId
from ..runtime.requests.host import LATER, Decision
from ..runtime.requests.rounds import Retry
from ..state.requests import Continuation, InboundRequest
from ..stores.sealing import KeyRing, check_secrets


@frozen(eq=False)
class RoundStates:
    """Creates the ``requestState`` that is sent to a client with input requests, and reads it when the client retries.
    Serves one connection.

    ``lifetime``: seconds for which a state is valid. ``exists`` returns whether everything that a request names still
    exists for its caller. ``replica``: the id of this process, if other replicas may receive the retries. The
    ``principal`` of `seal` is the caller, if the transport identifies callers.
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
        """Return the encrypted ``requestState`` to send in the response to ``request``. See `Seal`."""
        expires = None if self._lifetime == math.inf else time.time() + self._lifetime
        replica = self._replica if handle else ""
        kept = dict(answers or {})
        return self._cipher.seal(
            SealedState(fingerprint(request), expires, principal, handle, list(asked), kept, state, replica)
        )

    def read(self, request: InboundRequest, peer: Peer) -> Decision:
        """Decide how to continue with a request. Its ``requestState`` shows whether the client has retried an earlier
        request.

        - `Retry`, if a handler in this process is parked: it waits for this retry.
        - `LATER` otherwise, with the content of the retry in ``request.continuation``. That is a `RemoteRetry` if the
          handler is parked in another replica.

        Raises `CodedError` (-32602) if this server didn't issue the ``requestState`` to this caller for exactly this
        request. If no handler was parked, an expired state is ignored: the handler runs from the top, and requests the
        input again.
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
            # Don't check here whether a waiting handler has timed out.
            # `Parking`, which stores the handlers, checks timeouts with a monotonic clock, which can't be set back.
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
        # By MCP 2026-07-28 (mrtr page), servers MUST reject state that fails verification.
        if sealed is None or sealed.principal != principal:
            raise CodedError(INVALID_PARAMS, "Invalid params: invalid requestState: not issued to this caller")
        if sealed.fingerprint != fingerprint(request):
            raise CodedError(INVALID_PARAMS, "Invalid params: this requestState belongs to another request")
        return sealed


@frozen(kw_only=True)
class RemoteRetry(Continuation):
    """A retried request whose handler waits for the client's input in another process."""

    handle: bytes
    """Identifies the parked handler, as passed to `Seal`."""
    replica: str
    """The id of the replica in which the handler is parked."""


def _responses(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CodedError(INVALID_PARAMS, "Invalid params: inputResponses must be an object")
    responses = cast("dict[str, object]", value)
    for key, response in responses.items():
        if not isinstance(response, dict):
            raise CodedError(INVALID_PARAMS, f"Invalid params: inputResponses[{key[:100]!r}] must be an object")
    return responses


_LONGEST: Final = 4 * 1024 * 1024
"""Maximum length of a ``requestState`` in characters. A longer text can't have been created by this package, so it is
refused without decrypting."""
_PURPOSE: Final = b"trio-mcp requestState 1 "


class BadRequestState(ValueError):
    """Raised for a ``requestState`` that was modified, or that cannot be decrypted with any of the secrets."""


class SealedState(msgspec.Struct, frozen=True, array_like=True):
    """The decrypted contents of a ``requestState`` (2026-07-28 mrtr, Server Requirements 5: principal, expiry and
    request)."""

    fingerprint: bytes
    """Digest of the request that this ``requestState`` was created for. Only a retry of this request may contain it."""
    expires: float | None
    """When the ``requestState`` expires, in seconds since the epoch, so that other processes can check it. `None` if it
    never expires."""
    principal: PrincipalId | None
    """The only caller that may send this ``requestState``. `None` if the transport doesn't identify callers."""
    handle: bytes
    """Identifies the parked handler. Empty if no handler is parked."""
    asked: list[str]
    """The keys of the input requests that were sent with this ``requestState``."""
    answers: dict[str, Any]
    """The client's answers to all input requests of earlier attempts."""
    state: str
    """The state string that the handler returned in `InputRequired`."""
    replica: str = ""
    """The id of the replica in which the handler is parked. Empty if it can only be this process."""


class StateCipher:
    """Encrypts request states with AES-256-GCM. The keys are derived from the secrets ``shared`` and the server's
    ``name``.

    The first secret encrypts, and all secrets decrypt. To rotate, put a new secret first, and keep the old one until
    its states have expired. Processes that share a secret can open each other's states. Without secrets, a random one
    is used for the lifetime of this object. Raises `ValueError` for a secret of less than 32 bytes, and `TypeError` for
    `str`.
    """

    def __init__(self, name: str, shared: Sequence[bytes] = ()) -> None:
        # Derive the keys from the server's name too.
        # Because the keys depend on the name, servers with different names reject each other's request states.
        # They do so even if they share a secret.
        self._name = name.encode(errors="surrogatepass")
        self._secrets = check_secrets(shared) or (secrets.token_bytes(32),)

    def keys_for(self, purpose: bytes) -> KeyRing:
        """Return encryption keys of this server that are used only for ``purpose``."""
        return KeyRing(self._secrets, purpose + self._name)

    def secret_for(self, purpose: bytes) -> bytes:
        """Return a secret that is used only for ``purpose``. All processes whose first secret is equal get the same
        result."""
        return hmac.digest(self._secrets[0], purpose + self._name, "sha256")

    @cached_property
    def _keys(self) -> KeyRing:
        return self.keys_for(_PURPOSE)

    def seal(self, content: SealedState) -> str:
        """Encrypt ``content``, and return it as text. Raises `CodedError` (-32603) if the text is so large that a
        client couldn't send it back."""
        sealed = self._keys.seal(msgspec.json.encode(content), _PURPOSE)
        text = base64.urlsafe_b64encode(sealed).decode()
        if len(text) > _LONGEST:
            raise CodedError(
                INTERNAL_ERROR, "Internal error: the client's answers so far are too long for a requestState"
            )
        return text

    def open(self, text: str) -> SealedState:
        """Return the decrypted content of a ``requestState``.

        Raises `BadRequestState` if the ``requestState`` can't be decrypted. The caller must check the expiry.
        """
        if len(text) > _LONGEST:
            raise BadRequestState("too long")
        try:
            sealed = decode_base64url(text)
        except ValueError:
            raise BadRequestState("not base64") from None
        # base64 is ambiguous: other texts can decode to the same bytes
        if base64.urlsafe_b64encode(sealed).decode() != text:
            raise BadRequestState("the base64 text of the requestState differs from the issued text")
        try:
            return msgspec.json.decode(self._keys.open(sealed, _PURPOSE), type=SealedState)
        except (ValueError, msgspec.MsgspecError):
            raise BadRequestState("the requestState was modified, or encrypted with an unknown secret") from None


def fingerprint(request: InboundRequest) -> bytes:
    """Return a digest of a request's method and of the parameters that identify the request. It doesn't depend on the
    order of the parameters."""
    params = request.params
    arguments = params.get("arguments")
    if type(arguments) is msgspec.Raw:  # see `InboundRequest.put_away`
        arguments = decode_value(bytes(arguments))
    salient = [request.method.name, params.get("name"), params.get("uri"), arguments]
    return hashlib.sha256(msgspec.json.encode(salient, order="sorted")).digest()
