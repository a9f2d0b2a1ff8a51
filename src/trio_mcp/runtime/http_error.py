"""HTTPError: an exchange over HTTP that brought no reply."""

from __future__ import annotations

from http import HTTPStatus

from ..jsonrpc.errors import MCPError, clean


class HTTPError(MCPError):
    """The exchange of a request over HTTP ended without a reply. Other calls are not concerned, and the client stays
    usable.

    ``status`` is the HTTP status that the server, or a proxy on the way, has answered with; `None` when no answer came,
    because nobody listens for example. ``body`` is what the answer says, in plain words, up to 500 characters.
    ``retry_after`` are the seconds after which the server asks to be asked again (``Retry-After``); `None` where the
    server has not said so. ``session_lost`` is true where a legacy server has forgotten the session of the request: a
    new one is opened, and has the next request. The request may have run, unless the status says otherwise; no request
    is sent again by itself."""

    def __init__(
        self,
        status: int | None,
        reason: str,
        body: str = "",
        *,
        retry_after: float | None = None,
        session_lost: bool = False,
    ) -> None:
        self.status = status
        self.reason = clean(reason)
        self.body = clean(body)
        super().__init__(status, self.reason, self.body)
        self.retry_after = retry_after
        self.session_lost = session_lost

    @classmethod
    def refused(cls, status: int, body: str, retry_after: float | None = None) -> HTTPError:
        """Return the error for an answer whose status says that the request failed."""
        try:
            phrase = f" ({HTTPStatus(status).phrase})"
        except ValueError:
            phrase = ""
        return cls(status, f"the server answered with HTTP status {status}{phrase}", body, retry_after=retry_after)

    def __str__(self) -> str:
        return f"{self.reason}: {self.body}" if self.body else self.reason
