"""Opens the authorization server's sign-in page in the user's browser, and waits for the redirect back to the client.

`LoopbackListener` receives the redirect on this machine after the user has decided (RFC 8252 section 7.3). A listener
accepts one redirect URI, and answers one callback there; all other requests get 404. Other programs that can reach the
port, such as a web page in the browser, can neither inject an answer to another request nor block the user's answer.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import h11
import outcome
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import open_service_nursery
from ...transports.http_client.origins import is_local_host, split_url
from ...transports.streams import until_broken
from ..credentials import AuthorizationError, UserIsAsked, calling_user_code
from .grants import Visit

OnVisit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""A function that shows the URL to the user, or opens it. It returns the URL that the browser was redirected to, or
`None` if the listener receives the redirect."""

_LONGEST_URL: Final = 16 * 1024


@frozen
class Browser:
    """The user's browser, which opens the sign-in page.

    ``listener`` is `None` if only ``on_visit`` learns where the browser was redirected. The sign-in fails if the user
    hasn't decided after ``timeout`` seconds. ``user_is_asked`` pauses the timeouts of calls.
    """

    on_visit: OnVisit
    listener: LoopbackListener | None
    timeout: float
    user_is_asked: UserIsAsked

    async def make(self, visit: Visit) -> str:
        """Open ``visit.url`` in the user's browser, and return the URL that the browser was redirected to.

        Raises `AuthorizationError` if the user doesn't sign in in time.
        """
        _check(visit.url)
        answer = AwaitedCallback()
        with self.user_is_asked(), trio.move_on_after(self.timeout):
            async with open_service_nursery("the visit is over") as nursery:
                if self.listener is not None:
                    self.listener.expect(visit.url, answer)
                nursery.start_soon(self._ask, visit.url, answer)
                return await answer.wait()
        raise AuthorizationError(f"the user did not sign in within {self.timeout:g} s")

    async def _ask(self, url: str, answer: AwaitedCallback) -> None:
        try:
            with calling_user_code("the function on_visit"):
                callback = await self.on_visit(url)
        except AuthorizationError as error:
            # Drop the traceback, because its frames contain the sign-in URL.
            error.__traceback__ = error.__context__ = None
            answer.give(outcome.Error(error))
            return
        if callback is not None:
            answer.give(outcome.Value(callback))
        elif self.listener is None:
            words = "on_visit must return the URL that the browser was redirected to"
            answer.give(outcome.Error(AuthorizationError(words)))


def _check(url: str) -> None:
    """Raise `AuthorizationError` if ``url`` is unsafe to open in a browser (2026-07-28 security best practices, OAuth
    Authorization URL Validation)."""
    try:
        origin, _ = split_url(url)
    except ValueError:
        raise AuthorizationError(
            "the metadata of the authorization server contains no valid authorization_endpoint"
        ) from None
    if len(url) > _LONGEST_URL or not (origin.secure or is_local_host(origin.host)):
        raise AuthorizationError("refusing to open the authorization endpoint: its URL must begin with https://")


async def open_in_browser(url: str) -> None:
    """Open ``url`` in the user's browser, without a shell. This call may be cancelled at any time.

    This function is the default for the option ``on_visit`` of `OAuth`.
    """
    import webbrowser  # imported late, because only a sign-in opens a browser

    # A text-mode browser runs until the user quits it, so if this call is cancelled, its thread is abandoned.
    if not await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)):
        raise AuthorizationError("no browser can be opened here: pass OAuth(on_visit=...) to show the URL to the user")


class AwaitedCallback:
    """A future for the callback URL of a sign-in. Other tasks set the URL or an error, and one task waits for it."""

    def __init__(self) -> None:
        self._given = trio.Event()
        self._outcome: outcome.Outcome[str] | None = None

    def give(self, given: outcome.Outcome[str]) -> None:
        """Set the callback URL of the sign-in, or the error because of which it failed. Has no effect if a URL or an
        error was set before."""
        if self._outcome is None:
            self._outcome = given
            self._given.set()

    async def wait(self) -> str:
        """Wait for the callback URL of the sign-in and return it, or raise the error that was set."""
        await self._given.wait()
        assert self._outcome is not None, "it was given"
        return self._outcome.unwrap()


_HOSTS: Final = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
"""The address to listen on, for each host that a loopback redirect URI may have."""
_PATH: Final = "/callback"
_LONGEST_HEAD: Final = 32 * 1024
_READ: Final = 16 * 1024
_PATIENCE: Final = 10.0
"""Seconds that a connection to the loopback listener may take, from its beginning to its end."""
_MOST_CONNECTIONS: Final = 16
"""How many connections the loopback listener serves concurrently. Browsers open some connections in advance."""
_BACKLOG: Final = 16


def is_loopback_uri(uri: str) -> bool:
    """Return whether ``uri`` is a plain HTTP URL with a loopback host and a port, such as ``http://127.0.0.1:8000``.
    Raises `ValueError` for an invalid URI."""
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in _HOSTS and parts.port is not None


class LoopbackListener:
    """An HTTP server at ``redirect_uri`` that receives the browser's redirect after an authorization request."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri: Final = redirect_uri
        parts = urlsplit(redirect_uri)
        self._path = parts.path or "/"
        self._host = parts.netloc.lower().encode("ascii")
        self._places = trio.Semaphore(_MOST_CONNECTIONS)
        self._answer: AwaitedCallback | None = None
        self._state = ""

    def expect(self, url: str, answer: AwaitedCallback) -> None:
        """From now on, accept the browser's redirect that belongs to the authorization request at ``url``.

        When the browser arrives, store the redirect's URL in the future ``answer``.
        """
        self._state = _state_in(url)
        self._answer = answer

    async def serve(self, stream: trio.SocketStream) -> None:
        """Respond to one HTTP request of the browser, then close the connection."""
        with until_broken(), trio.move_on_after(_PATIENCE):
            async with stream, self._places:
                request = await _read_request(stream)
                callback = None if request is None else self._callback(request)
                if callback is None or self._answer is None:
                    await stream.send_all(_page(404, "There is nothing here."))
                else:
                    await stream.send_all(_page(200, "You can close this page and return to the application."))
                    self._answer.give(outcome.Value(callback))
                # Read the rest of the request, since closing with unread data resets the connection.
                with trio.move_on_after(1):
                    await stream.send_eof()
                    while await stream.receive_some(_READ):
                        pass

    def _callback(self, request: h11.Request) -> str | None:
        """Return the URL that the browser was redirected to. Returns `None` if the browser has requested another
        URL."""
        if self._answer is None or request.method != b"GET":
            return None
        # Check the Host header against DNS rebinding: a web page can point its host name here, but can't change Host.
        if [value.lower() for name, value in request.headers if name == b"host"] != [self._host]:
            return None
        path, _, query = request.target.decode("ascii").partition("?")
        if path != self._path:
            return None
        # RFC 6749 sections 4.1.2 and 4.1.2.1: successful and failed responses contain the state.
        # Without the check of the state, any web page could end the sign-in by sending the browser to this listener.
        state = _state_in(f"?{query}")
        if not hmac.compare_digest(state.encode(errors="replace"), self._state.encode()):
            return None
        return f"{self.redirect_uri.partition('?')[0]}?{query}"


@asynccontextmanager
async def open_loopback(redirect_uri: str | None, former: Iterable[str] = ()) -> AsyncGenerator[LoopbackListener]:
    """Listen at ``redirect_uri`` for the browser's redirect.

    If ``redirect_uri`` is `None`, use the first URI in ``former`` whose port is free, or else any free port. ``former``
    contains the URIs that were registered before: an authorization server may accept only registered URIs. Raises
    `AuthorizationError` if the port is taken.
    """
    listeners, uri = await _listeners(redirect_uri, former)
    listener = LoopbackListener(uri)
    async with open_service_nursery("the visit is over") as nursery:
        nursery.start_soon(trio.serve_listeners, listener.serve, listeners)
        yield listener


async def _listeners(redirect_uri: str | None, former: Iterable[str]) -> tuple[list[trio.SocketListener], str]:
    if redirect_uri is not None:
        parts = urlsplit(redirect_uri)
        try:
            return await _listen(parts.port or 0, _HOSTS[parts.hostname or ""]), redirect_uri
        except OSError as error:
            words = f"cannot listen at the redirect URI {redirect_uri}: {error.strerror}"
            raise AuthorizationError(words) from None
    for uri in former:
        parts = urlsplit(uri)
        if parts.hostname == "127.0.0.1" and parts.path == _PATH and parts.port is not None:
            try:
                return await _listen(parts.port, "127.0.0.1"), uri
            except OSError:
                continue
    try:
        listeners = await _listen(0, "127.0.0.1")
    except OSError as error:
        raise AuthorizationError(f"cannot listen on 127.0.0.1 for the browser's redirect: {error.strerror}") from None
    return listeners, f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}{_PATH}"


async def _listen(port: int, host: str) -> list[trio.SocketListener]:
    return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)


def _state_in(url: str) -> str:
    """Return the parameter ``state`` in the query of ``url``; an empty string if there is none."""
    try:
        values = parse_qs(urlsplit(url).query, max_num_fields=64).get("state")
    except ValueError:
        return ""
    return "" if values is None else values[0]


async def _read_request(stream: trio.SocketStream) -> h11.Request | None:
    """Read the head of an HTTP request from ``stream`` and return it; `None` if the bytes aren't an HTTP request."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        parser.receive_data(await stream.receive_some(_READ))


def _page(status: int, text: str) -> bytes:
    """Return an HTTP response with a web page of one sentence. The page contains no scripts and loads nothing."""
    body = f"<!doctype html><meta charset=utf-8><title>{text}</title><p>{text}</p>\n".encode()
    reason = "OK" if status == 200 else "Not Found"
    head = (
        f"HTTP/1.1 {status} {reason}\r\n"
        "Content-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Content-Security-Policy: default-src 'none'\r\n"
        "Referrer-Policy: no-referrer\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
