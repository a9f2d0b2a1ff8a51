"""Ready-made middleware: time limits, rate limits, concurrency limits, and an audit log.

    server.middleware("tools/call")(rate_limit(60, period=60.0))

Pass each to `Server.middleware`. It has its own state, so if you pass one to two servers, or twice to one, they share
the limit. Limits apply to calls, reads, prompts, completions, listings and extension requests. They don't apply to
streams, requests about tasks (``tasks/...``), and tasks that run again after a restart.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import trio

from .concurrency.bounded import BoundedDict
from .diagnostics.log import unlimited_logger
from .jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError, clean
from .protocol.fields import JSONObject
from .protocol.types.input_required import InputRequiredResult
from .protocol.types.tools import CallToolResult, ToolError
from .runtime.cancellation import CancelCause
from .server.middleware import MiddlewareFunction, Next, PositionedMiddleware, ServerRequest

if TYPE_CHECKING:
    from .stores.shared import RateLimits

logger = logging.getLogger("trio_mcp")

_LONGEST: Final = 10.0**14
"""Maximum period of a shared rate limit in milliseconds, which is some thousand years."""

Key: TypeAlias = Callable[[ServerRequest], Hashable]
"""Function that maps a request to a key. Requests with equal keys share a limit. Keys are stored for a while, so keep
them small, and don't let clients choose them freely."""


def _by_caller(request: ServerRequest) -> Hashable:
    return request.caller


def time_limit(seconds: float) -> MiddlewareFunction:
    """Middleware that cancels a request after ``seconds`` seconds, and reports to the client that it took too long.

    A tool call gets a result with ``isError``, any other request a `CodedError` (-32603). The time starts with this
    middleware, and includes waits in further middleware. It doesn't include time spent waiting for the user in
    `RequestContext.elicit`. For a task, it lasts until the task ends. Raises `ValueError` unless ``seconds`` is greater
    than 0.
    """
    _check_positive("seconds", seconds)

    async def limit_time(request: ServerRequest, next: Next) -> Any:
        if _is_exempt(request):
            return await next(request)
        result = None
        with request.move_on_after(seconds):
            result = await next(request)
        if result is not None:
            return result
        words = f"{request.offer or request.method} took longer than its limit of {seconds:g} seconds"
        raise ToolError(words) if request.method == "tools/call" else CodedError(INTERNAL_ERROR, words)

    return limit_time


def rate_limit(
    limit: int,
    *,
    period: float,
    burst: int | None = None,
    key: Key = _by_caller,
    keys: int = 10_000,
    name: str | None = None,
) -> MiddlewareFunction:
    """Middleware that limits the rate of requests.

    Excess requests get `CodedError` (-31000), whose ``data`` contains the seconds until a retry as ``retryAfter``.

    Args:
        limit: Number of requests per ``period``.
        period: Length of the period in seconds.
        burst: Number of requests that may arrive at once; ``limit`` by default.
        key: Function that returns the key of a request's token bucket; `ServerRequest.caller` by default. For one
            bucket per tool: ``key=lambda request: request.offer``.
        keys: Maximum number of buckets. Beyond it, the bucket that was unused longest is dropped, which makes it full
            again.
        name: Name of the limit, for replicas.

    Refused requests take no token. Raises `ValueError` unless the numbers are greater than 0.

    Replicas that share a storage (``shared=``) share the buckets, at the cost of one round trip per request. They share
    the buckets of limits with the same ``name`` or, without a name, at the same position in the server's middleware. A
    shared key must be `str`, `bytes`, `int`, `None`, a `PrincipalId`, or a tuple of such keys. Requests with other keys
    are counted in each process separately, which is logged once. While the storage is unavailable, all requests are:
    the total limit is then multiplied by the number of replicas.
    """
    burst = limit if burst is None else burst
    for what, number in {"limit": limit, "period": period, "keys": keys, "burst": burst}.items():
        _check_positive(what, number)
    return _RateLimit(limit, period, burst, key, keys, name)


def concurrency_limit(limit: int, *, key: Key = _by_caller) -> MiddlewareFunction:
    """Middleware that limits concurrent requests to ``limit`` for each ``key``, by default for each
    `ServerRequest.caller`.

    Further requests wait in order of arrival, within the `Limits`.

    A parked handler still counts towards the limit, and so does a task until it ends. Raises `ValueError` unless
    ``limit`` is greater than 0, and `TypeError` unless it is an integer.
    """
    _check_positive("limit", limit)
    trio.CapacityLimiter(limit)  # raise for an invalid limit now, not at the first request
    limiters: dict[Hashable, trio.CapacityLimiter] = {}

    async def limit_concurrency(request: ServerRequest, next: Next) -> Any:
        if _is_unlimited(request):
            return await next(request)
        name, borrower = key(request), object()
        limiter = limiters.setdefault(name, trio.CapacityLimiter(limit))
        try:
            try:
                # Acquire the limiter's token without a checkpoint if a token is free.
                # At a checkpoint, trio could run other requests first, and so change the order of handlers.
                limiter.acquire_on_behalf_of_nowait(borrower)
            except trio.WouldBlock:
                await limiter.acquire_on_behalf_of(borrower)
            try:
                return await next(request)
            finally:
                limiter.release_on_behalf_of(borrower)
        finally:
            # If no token is borrowed, no request waits: trio passes a released token to a waiting request at once.
            if not limiter.borrowed_tokens and limiters.get(name) is limiter:
                del limiters[name]

    return limit_concurrency


audit: Final = unlimited_logger("trio_mcp.audit")
"""The logger of `audit_log`. Records are written by the thread that writes logs, and aren't limited per caller."""


def audit_log(log: logging.Logger = audit, *, arguments: Collection[str] = ()) -> MiddlewareFunction:
    """Middleware that writes a log record, at level info, when a request has ended.

    The record contains the caller, the request, its duration and its outcome.

    Args:
        log: The logger, ``trio_mcp.audit`` by default. Its records are written by a thread, so that no request waits.
            The handlers of any other logger run in trio's thread.
        arguments: Names of arguments to log: strings, numbers and booleans that the client sent, at most 200 characters
            each.

    The record has these attributes for programs: ``method``, ``offer``, ``caller``, ``outcome``, ``cause``,
    ``duration`` in seconds, and ``arguments``. Outcomes are ``ok``, ``failed`` (the tool returned an error), ``error``,
    ``asked`` (the client must send input, and then retries) and ``cancelled``. Causes are error codes, exception types
    and `CancelCause`. Except for the name of the caller and these arguments, no text from peers, results or exceptions
    is logged.
    """
    if isinstance(arguments, str):
        raise TypeError(f"arguments must be a list:\n    wrong:  {arguments!r}\n    right:  [{arguments!r}]")
    names = tuple(arguments)

    async def write_audit(request: ServerRequest, next: Next) -> Any:
        begun = trio.current_time()
        end = "ok", None
        try:
            result = await next(request)
            if isinstance(result, InputRequiredResult):
                end = "asked", None
            elif isinstance(result, CallToolResult) and result.is_error:
                end = "failed", None
            return result
        except BaseException as error:
            end = _end_of(request, error)
            raise
        finally:
            _write(log, request, names, end, trio.current_time() - begun)

    return write_audit


def _is_exempt(request: ServerRequest) -> bool:
    """Return whether the method of a request exempts it from rate and concurrency limits.

    Streams and requests about tasks are exempt, because `Limits` already limits both.
    """
    return request._streams or request.method.startswith("tasks/")


def _is_unlimited(request: ServerRequest) -> bool:
    """Return whether a request is exempt from rate and concurrency limits.

    Its method is exempt, or the request is a task that runs again after a restart.
    """
    task = request.ctx.task
    return _is_exempt(request) or (task is not None and task.has_started)


def _check_positive(name: str, number: float) -> None:
    if not number > 0:
        raise ValueError(f"{name} must be greater than 0, not {number!r}")


class _RateLimit(PositionedMiddleware):
    """The middleware that `rate_limit` returns.

    In one process, it has one state, even if it is registered at several positions.
    """

    def __init__(self, most: int, per: float, burst: int, key: Key, keys: int, name: str | None) -> None:
        self._most = most
        self._per = per
        self._burst = burst
        self._key = key
        self._name = name
        self._buckets = _Buckets(per / most, burst, keys)
        self._has_warned = False
        self._is_storage_down = False
        """True while the storage that the replicas share is unavailable."""

    async def __call__(self, request: ServerRequest, next: Next) -> Any:
        """Run a request if the rate limit allows it. Only requests in this process are counted."""
        return await self._limit(None, request, next)

    def at_position(self, position: int) -> MiddlewareFunction:
        """Return a copy of this middleware for the position ``position`` in a server's list of middleware.

        See `PositionedMiddleware`.
        """
        kind = ("name", self._name) if self._name is not None else ("place", position)
        return partial(self._limit, _plain((*kind, repr((self._most, self._per, self._burst)))))

    async def _limit(self, limit: bytes | None, request: ServerRequest, next: Next) -> Any:
        if not _is_unlimited(request):
            key, rates = self._key(request), None if limit is None else request._rates
            wait = None if rates is None or limit is None else await self._acquire_shared(rates, limit, key)
            if wait is None:
                wait = self._buckets.acquire(key, trio.current_time())
            if wait > 0:
                seconds = math.ceil(wait * 1000) / 1000
                words = f"Too busy: too many requests; come back in {seconds:g} seconds"
                raise CodedError(TOO_BUSY, words, {"retryAfter": seconds})
        return await next(request)

    async def _acquire_shared(self, rates: RateLimits, limit: bytes, key: Hashable) -> float | None:
        """Take a token from a token bucket that all replicas share.

        Return 0, or the seconds to wait if the bucket is empty. Return `None` if the shared storage is unavailable or
        the key cannot be shared.
        """
        try:
            digest = sha256(limit + _plain(key)).digest()
        except TypeError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("a rate limit counts some requests in each process separately: %s", error)
            return None
        per = min(self._per * 1000, _LONGEST)
        try:
            wait = await rates.acquire(digest, limit=self._most, period_ms=max(1, round(per)), burst=self._burst)
        except OSError as error:
            if not self._is_storage_down:
                self._is_storage_down = True
                logger.warning(
                    "a rate limit counts in each process separately until the storage works again: %s", error
                )
            return None
        self._is_storage_down = False
        return wait / 1000


def _plain(key: object) -> bytes:
    """Encode the rate limit key ``key`` as bytes. Equal keys give equal bytes in all processes, and different keys give
    different bytes.

    Raises `TypeError` if the type isn't supported.
    """
    match key:
        case None:
            return b"n"
        case int():
            return b"i%d;" % key
        case str():
            text = key.encode(errors="surrogatepass")
            return b"s%d:%b" % (len(text), text)
        case bytes():
            return b"b%d:%b" % (len(key), key)
        case tuple():
            members = [_plain(member) for member in cast("tuple[object, ...]", key)]
            return b"t%d:%b" % (len(members), b"".join(members))
        case _:
            raise TypeError(
                f"a shared rate limit needs a str, bytes, int, None or tuple of these as key, not {type(key).__name__}"
            )


class _Buckets:
    """The token buckets of a rate limit, by key.

    A bucket holds at most ``burst`` tokens, and gets one every ``interval`` seconds. For each bucket, only the time at
    which it will be full is stored. A bucket without a stored time is full.
    """

    def __init__(self, interval: float, burst: int, limit: int) -> None:
        self._interval = interval
        self._burst = burst
        self._full_at = BoundedDict[Hashable, float](limit)

    def acquire(self, key: Hashable, now: float) -> float:
        """Take a token from the bucket for ``key``. Returns 0, or the seconds until the next token if the bucket is
        empty."""
        full_at = max(self._full_at.get(key, now), now) + self._interval
        wait = full_at - now - self._interval * self._burst
        if wait > 1e-9:  # a wait of up to a nanosecond is only a rounding error
            return wait
        self._full_at[key] = full_at
        return 0


_End: TypeAlias = tuple[str, str | None]
"""The outcome of a request, and the cause of that outcome."""


def _end_of(request: ServerRequest, error: BaseException) -> _End:
    """Return the outcome of a request that raised ``error``, for the audit log.

    Also return the cause of this outcome.
    """
    cancellation = request.ctx.cancellation
    cause = None if cancellation is None else str(cancellation.cause)
    if isinstance(error, ToolError):
        return "failed", cause
    if cause == CancelCause.REPLAY:
        return "asked", None
    if cause is not None:
        return "cancelled", cause
    return "error", str(error.code) if isinstance(error, CodedError) else type(error).__name__


def _write(log: logging.Logger, request: ServerRequest, names: Collection[str], end: _End, duration: float) -> None:
    """Write the audit log record of a request that has ended."""
    if not log.isEnabledFor(logging.INFO):
        return
    outcome, cause = end
    given: JSONObject = request.params.arguments or {} if request._has_arguments else {}
    shown = {name: _shown(given[name]) for name in names if name in given}
    facts = {"method": request.method, "offer": request.offer, "caller": request.caller_name, "outcome": outcome}
    words = request.method if facts["offer"] is None else f"{request.method} {facts['offer']}"
    words += "" if facts["caller"] is None else f" for {facts['caller']}"
    words += f": {outcome}" if cause is None else f": {outcome} ({cause})"
    extra = {**facts, "cause": cause, "duration": duration, "arguments": shown}
    log.info("%s after %.3f s%s", words, duration, f", {shown}" if shown else "", extra=extra)


def _shown(value: Any) -> Any:
    """Return the value of a request's argument as it appears in the audit log.

    Values that take long to write are left out.
    """
    if isinstance(value, str):
        return clean(value[:200])
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 128):
        return value
    return f"<{type(value).__name__}>"
