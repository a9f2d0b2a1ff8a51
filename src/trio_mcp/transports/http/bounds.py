"""HttpBounds says how much a client may send, and how long that may take; BadRequest is what a request is refused with
that is too much, or none.
"""

from __future__ import annotations

from http import HTTPStatus

from ...classes import frozen


class BadRequest(Exception):
    """The request is refused with ``status``, and the connection ends: where the next request begins is unknown."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@frozen
class HttpBounds:
    """The bounds of a connection. Times are in seconds, as exact as `HttpConnection.tick` is called often."""

    max_head_bytes: int = 16 * 1024
    """Bytes from the request line to the empty line behind the headers."""
    max_target_bytes: int = 8 * 1024
    max_headers: int = 100
    max_body_bytes: int = 4 * 1024 * 1024
    max_unserved_bytes: int = 64 * 1024
    """Bytes behind a head from which reading pauses, while the application decides by that head alone."""
    max_pipelined_bytes: int = 1024 * 1024
    """Bytes behind a request in service that are read ahead. Reading never pauses there, since the end of a connection
    comes behind all that was sent; with more bytes, the connection ends."""
    head_timeout: float = 10.0
    """Time from the first byte of a head to its last, and, for the first head, from the begin of the connection."""
    body_timeout: float = 60.0
    """Time from the last byte of a head to the last byte of the body."""
    idle_timeout: float = 75.0
    """Time between requests."""
    write_timeout: float = 30.0
    """Time in which a client that has bytes to read must take some."""
    linger_timeout: float = 2.0
    """Time that a client has to read the last answer."""
    max_dropped_bytes: int = 64 * 1024 * 1024
    """Bytes of the rest of a refused body that are read and dropped, within `body_timeout`. Most clients write the
    whole body before they read, and would lose the answer if the connection were reset. A body that is too large has
    `linger_timeout` between two pieces."""
    max_linger_bytes: int = 1024 * 1024
    """Bytes that are read and dropped after the last answer. A connection that is closed with unread bytes is reset,
    and its client might never see that answer. The rest of a refused body is dropped earlier: see
    `max_dropped_bytes`."""
