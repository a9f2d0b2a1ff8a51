"""`EarlyCancels` stores the cancellations of a session that arrive before their requests."""

from __future__ import annotations

from typing import Final

from ...concurrency.bounded import BoundedDict
from ...jsonrpc.messages import Notification, RequestId
from ...protocol.fields import as_object

WAIT: Final = 2.0
"""Seconds for which a cancellation waits for its request."""
MAX_WAITING: Final = 64
"""Maximum number of waiting cancellations. If there are more, the oldest is dropped."""
WINDOW: Final = 256
"""Number of recent integer ids, and of recent string ids, that are known as used."""
_MASK: Final = (1 << WINDOW) - 1
_LONGEST_ID: Final = 200
"""Maximum number of characters of a string id, or bits of an integer id, whose cancellation can wait."""
_LONGEST_REASON: Final = 1000
"""Number of characters that are stored of a cancellation's reason."""


class EarlyCancels:
    """Stores the cancellations of one session that arrive before the requests that they cancel.

    A client sends a request and its cancellation in separate POSTs, so the server can read the cancellation first. The
    cancellation then waits for two seconds. If the request arrives by then, it's cancelled at once (ruling 20).

    A cancellation waits only if its id is unused. Otherwise a late cancellation of an answered request could stop a
    later request with the same id. The specification forbids clients to use an id twice, but some clients do.
    An integer counts as used if a request had it, or if it's 256 or more below the highest id. A string counts as used
    if one of the last 256 requests with string ids had it.
    """

    __slots__ = ("_highest", "_strings", "_used", "_waiting")

    def __init__(self) -> None:
        self._highest = 0
        """The highest integer id so far, at least 0."""
        self._used = 0
        """Bit field of the used integers: bit ``n`` is set if the id ``_highest - n`` was used."""
        self._strings: BoundedDict[int, None] | None = None
        """Hashes of the last string ids. `None` before the first one."""
        self._waiting: BoundedDict[RequestId, tuple[float, Notification]] | None = None
        """Cancellations by request id, each with the time until which it waits. `None` before the first one."""

    def cancel_arrived(self, cancel: Notification, now: float) -> None:
        """Handle a ``notifications/cancelled``: store it if its request hasn't arrived yet, and ignore it otherwise."""
        params = as_object(cancel.params)
        request_id, reason = params.get("requestId"), params.get("reason")
        if type(request_id) is int:
            behind = self._highest - request_id
            is_used = behind >= WINDOW or (behind >= 0 and self._used >> behind & 1 == 1)
            if is_used or request_id.bit_length() > _LONGEST_ID:
                return
        elif type(request_id) is str:
            is_used = self._strings is not None and hash(request_id) in self._strings
            if is_used or len(request_id) > _LONGEST_ID:
                return
        else:
            return
        if self._waiting is None:
            self._waiting = BoundedDict(MAX_WAITING)
        stored = {"requestId": request_id, "reason": reason[:_LONGEST_REASON] if type(reason) is str else None}
        self._waiting[request_id] = now + WAIT, Notification(cancel.method, stored)

    def request_arrived(self, request_id: RequestId, now: float) -> Notification | None:
        """Record that a request with ``request_id`` has arrived.

        Return the cancellation of this request if it arrived earlier, otherwise `None`. Call this for each request,
        even if the request is refused.
        """
        if type(request_id) is int:
            ahead = request_id - self._highest
            if ahead > 0:
                self._used = (self._used << ahead | 1) & _MASK if ahead < WINDOW else 1
                self._highest = request_id
            elif ahead > -WINDOW:
                self._used |= 1 << -ahead
        else:
            if self._strings is None:
                self._strings = BoundedDict(WINDOW)
            self._strings[hash(request_id)] = None
        if not self._waiting:
            return None
        until, cancel = self._waiting.pop(request_id, (now, None))
        return cancel if now < until else None
