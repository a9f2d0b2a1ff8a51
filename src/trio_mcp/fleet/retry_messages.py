"""The messages by which retries are carried between replicas: sealed, since the tokens of callers, the answers of users
and their results are inside.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.messages import RequestId
from ..runtime.peer import Auth, Principal, PrincipalId
from ..stores.record_codec import decode_stored
from ..stores.sealing import BadSeal
from ..stores.task_store import UnreadableRecord
from .messenger import ReplicaMessage

if TYPE_CHECKING:
    from ..server.request_state import StateCipher

logger = logging.getLogger("trio_mcp")

T = TypeVar("T", bound=msgspec.Struct)

RETRY: Final = "retry"
"""Kind of the messages that carry a retry to the owner of its handler: a sealed `RetryMessage`."""
LINES: Final = "retry-lines"
"""Kind of the messages that carry lines of a handler to the replica that took the retry: a sealed `LinesMessage`."""
CANCEL: Final = "retry-cancel"
"""Kind of the messages that cancel a retry: a sealed `CancelMessage`."""
CHECK: Final = "retry-check"
"""Kind of the messages that ask after calls: a sealed `CheckMessage`. The receipt is a `CheckAck`."""


class ForwardedAuth(msgspec.Struct, frozen=True, array_like=True):
    """The `Auth` of a caller, but the facts that the author has added."""

    token: str
    issuer: str | None
    subject: str | None
    client_id: str | None
    scopes: list[str]
    claims: bytes
    expires_at: float | None
    key_thumbprint: str | None

    def __repr__(self) -> str:  # without the token
        return f"ForwardedAuth(subject={self.subject!r})"

    @classmethod
    def of(cls, auth: Auth) -> ForwardedAuth:
        """Return the facts of ``auth``. Where one of the claims is no JSON, which only the verifier of an author makes,
        all claims are left out."""
        principal = auth.principal
        try:
            claims = pack_value(dict(principal.claims))
        except (TypeError, ValueError, msgspec.MsgspecError):
            claims = b"{}"
        return cls(
            auth.token,
            principal.issuer,
            principal.subject,
            principal.client_id,
            sorted(principal.scopes),
            claims,
            principal.expires_at,
            principal.key_thumbprint,
        )

    def auth(self, before: Auth | None) -> Auth:
        """Return the caller, with the facts that the author has added to the same caller ``before``."""
        principal = Principal(
            issuer=self.issuer,
            subject=self.subject,
            client_id=self.client_id,
            scopes=frozenset(self.scopes),
            claims=decode_value(self.claims),
            expires_at=self.expires_at,
            key_thumbprint=self.key_thumbprint,
        )
        return Auth(self.token, principal, {} if before is None else before.extra)


class RetryMessage(msgspec.Struct, frozen=True, array_like=True):
    """A retry that its taker has checked: the head, the token, the scopes, and the seal of its state."""

    number: int
    """Number of the call, among all that the taker has carried."""
    handle: bytes
    id: RequestId
    method: str
    params: bytes
    """JSON text, with the answers of the client, and the time that is left in ``_meta``."""
    size: int
    principal: PrincipalId | None
    auth: ForwardedAuth | None
    headers: dict[str, str] | None

    def __repr__(self) -> str:  # without answers and headers
        return f"RetryMessage(number={self.number!r}, method={self.method!r}, auth={self.auth!r})"


class LinesMessage(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the lines of a handler: bytes of whole lines, or a part of a long line. A batch goes out when the
    receipt of the one before has come, which is when its taker has room for more."""

    number: int
    """Number of the call."""
    index: int
    """Number of the batch, from 0 on."""
    lines: bytes
    is_last: bool
    """True for the batch with the reply, as its last line. Without any line the call has ended without a reply."""


class CancelMessage(msgspec.Struct, frozen=True, array_like=True):
    """The cancel of a carried call: its client has left, or has no time any more."""

    number: int
    is_late: bool
    """True where the deadline of the caller has passed."""
    reason: str


class CheckMessage(msgspec.Struct, frozen=True, array_like=True):
    """Asks after the calls between two replicas, by their numbers."""

    forwarded: list[int]
    """Calls that the sender has carried to the receiver."""
    running: list[int]
    """Calls of the receiver that run at the sender."""


class CheckAck(CheckMessage, frozen=True):
    """The calls of a `CheckMessage` of which its receiver knows nothing, or nothing any more."""


class MessageSeal:
    """Seals and opens the messages of carried retries, and of sessions, with the secrets of ``cipher``. A message is
    good for its kind, between two replicas."""

    def __init__(self, cipher: StateCipher, replica: str) -> None:
        self._keys = cipher.keys_for(b"trio-mcp carried retry 1 ")
        self._replica = replica

    def seal(self, kind: str, receiver: str, content: object) -> bytes:
        """Return ``content`` sealed, for a message to ``receiver``."""
        about = f"{kind} {self._replica} {receiver}".encode()
        return self._keys.seal(msgspec.msgpack.encode(content), about)

    def open(self, kind: str, message: ReplicaMessage, form: type[T]) -> T | None:
        """Return the content of ``message``; `None`, and the message is refused, where that cannot be read."""
        about = f"{kind} {message.sender} {self._replica}".encode()
        try:
            content = self._keys.open(message.content, about)
            return decode_stored(f"a letter of the kind {kind}", partial(msgspec.msgpack.decode, type=form), content)
        except BadSeal:
            pass
        except UnreadableRecord as error:  # of another version
            logger.warning("%s", error)
        message.refuse("this replica cannot read the letter: it has other secrets, or another version")
        return None
