"""The messages with which replicas forward retried requests to each other.

They are sealed, because they contain access tokens of callers, answers of users, and results.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.messages import RequestId
from ..runtime.peer import Auth, Principal, PrincipalId

RETRY: Final = "retry"
"""The kind of messages that forward a retried request to the replica where its handler waits: an encrypted
`RetryMessage`."""
LINES: Final = "retry-lines"
"""The kind of messages that send a handler's messages to the forwarding replica: an encrypted `LinesMessage`."""
CANCEL: Final = "retry-cancel"
"""The kind of messages that cancel a forwarded request: an encrypted `CancelMessage`."""
CHECK: Final = "retry-check"
"""The kind of messages that ask which forwarded requests are still running: an encrypted `CheckMessage`. The
acknowledgement is a `CheckAck`."""


class ForwardedAuth(msgspec.Struct, frozen=True, array_like=True):
    """The caller's `Auth` as it is sent to another replica. The data that server code has added (``extra``) is
    omitted."""

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
        """Return the `Auth` of the forwarded request's caller.

        Its field ``extra`` comes from ``before``, the `Auth` of an earlier request of the same caller to this replica.
        """
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
    """The message that forwards a retried request to another replica.

    The sender has already checked the request's headers, access token, scopes and encrypted state.
    """

    number: int
    """The number of the forwarded request, counted by the forwarding replica."""
    handle: bytes
    id: RequestId
    method: str
    params: bytes
    """The parameters of the request as JSON text, with the client's responses. ``_meta`` contains the remaining
    time."""
    size: int
    principal: PrincipalId | None
    auth: ForwardedAuth | None
    headers: dict[str, str] | None

    def __repr__(self) -> str:  # the client's input and headers are secret, so the repr omits them
        return f"RetryMessage(number={self.number!r}, method={self.method!r}, auth={self.auth!r})"


class LinesMessage(msgspec.Struct, frozen=True, array_like=True):
    """A batch of bytes from the JSON-RPC messages that a handler sends to its client. A batch may begin or end within a
    message.

    The owner sends a few batches before they are acknowledged. The forwarding replica acknowledges a batch when it has
    room for more.
    """

    number: int
    """The number of the forwarded request."""
    index: int
    """The number of the batch, from 0."""
    lines: bytes
    is_last: bool
    """True for the last batch. The last line of this batch is the response. If the batch is empty, the request has
    ended without a response."""


class CancelMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that cancels a forwarded request, because the client has disconnected or the request's deadline has
    passed."""

    number: int
    is_late: bool
    """True if the deadline of the client's request has passed."""
    reason: str


class CheckMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that asks another replica which forwarded requests are still running.

    It lists the requests in both directions between the two replicas, by number.
    """

    forwarded: list[int]
    """The numbers of the requests that the sender has forwarded to the receiver."""
    running: list[int]
    """The numbers of the requests that the receiver has forwarded to the sender, and that are running on the sender."""


class CheckAck(CheckMessage, frozen=True):
    """The answer to a `CheckMessage`. Of the forwarded requests in that message, it lists those that don't run on the
    answering replica."""
