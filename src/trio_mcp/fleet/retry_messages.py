"""The messages with which replicas forward retried requests to each other.

They are sealed, because they contain access tokens of callers, answers of users, and results.
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
"""Kind of the messages that forward a retry to the owner of its handler: a sealed `RetryMessage`."""
LINES: Final = "retry-lines"
"""Kind of the messages that send lines of a handler to the forwarding replica: a sealed `LinesMessage`."""
CANCEL: Final = "retry-cancel"
"""Kind of the messages that cancel a retry: a sealed `CancelMessage`."""
CHECK: Final = "retry-check"
"""Kind of the messages that check open calls: a sealed `CheckMessage`. The receipt is a `CheckAck`."""


class ForwardedAuth(msgspec.Struct, frozen=True, array_like=True):
    """The caller's `Auth` in the form that is sent to another replica: without ``extra``, the data that server code has
    added."""

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
        """Return the data of ``auth`` that can be sent to another replica.

        If one of the claims isn't JSON, which only a custom verifier can cause, all claims are left out.
        """
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
        """Return the `Auth` of the forwarded request. Its field ``extra`` comes from ``before``, the `Auth` of an
        earlier request of the same caller to this replica."""
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
    """The message that forwards a retried request to another replica. The sender has already checked the request's
    headers, access token, scopes and encrypted state."""

    number: int
    """Number of the call, counted by the forwarding replica."""
    handle: bytes
    id: RequestId
    method: str
    params: bytes
    """The parameters as JSON text, with the client's answers, and the remaining time in ``_meta``."""
    size: int
    principal: PrincipalId | None
    auth: ForwardedAuth | None
    headers: dict[str, str] | None

    def __repr__(self) -> str:  # the repr omits the client's input and headers
        return f"RetryMessage(number={self.number!r}, method={self.method!r}, auth={self.auth!r})"


class LinesMessage(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the JSON-RPC messages that a handler sends to its client: whole lines, or a part of a long line.

    The owner sends a few batches ahead of their receipts. The forwarding replica sends a receipt when it has room for
    more.
    """

    number: int
    """Number of the call."""
    index: int
    """Number of the batch, from 0."""
    lines: bytes
    is_last: bool
    """True for the last batch. Its last line is the reply; without any line, the call has ended without a reply."""


class CancelMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that cancels a forwarded request, because its client has disconnected or its deadline has passed."""

    number: int
    is_late: bool
    """True if the deadline of the caller has passed."""
    reason: str


class CheckMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that asks another replica which of the forwarded requests between the two replicas are still running.
    Requests are identified by number."""

    forwarded: list[int]
    """Calls that the sender has forwarded to the receiver."""
    running: list[int]
    """Calls that the receiver has forwarded to the sender, and that run there."""


class CheckAck(CheckMessage, frozen=True):
    """The reply to a `CheckMessage`: the numbers of the requests that aren't running on the replying replica."""


class MessageSeal:
    """Encrypts and decrypts the content of messages between replicas, with the secrets of ``cipher``.

    A sealed message is only valid for its kind, its sender and its receiver.
    """

    def __init__(self, cipher: StateCipher, replica: str) -> None:
        self._keys = cipher.keys_for(b"trio-mcp carried retry 1 ")
        self._replica = replica

    def seal(self, kind: str, receiver: str, content: object) -> bytes:
        """Return ``content``, encoded and encrypted for a message of ``kind`` to ``receiver``."""
        about = f"{kind} {self._replica} {receiver}".encode()
        return self._keys.seal(msgspec.msgpack.encode(content), about)

    def open(self, kind: str, message: ReplicaMessage, form: type[T]) -> T | None:
        """Decrypt ``message``, and return its content as an instance of ``form``. If the message can't be read, refuse
        it and return `None`."""
        about = f"{kind} {message.sender} {self._replica}".encode()
        try:
            content = self._keys.open(message.content, about)
            return decode_stored(f"a message of the kind {kind}", partial(msgspec.msgpack.decode, type=form), content)
        except BadSeal:
            pass
        except UnreadableRecord as error:  # from another version
            logger.warning("%s", error)
        message.refuse("this replica cannot read the message: it has other secrets, or another version")
        return None
