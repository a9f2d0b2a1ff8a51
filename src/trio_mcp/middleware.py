"""Middleware that is ready for use: limits of time, of rate and of concurrency, and a log of who did what.

    server.middleware("tools/call")(rate_limit(60, period=60.0))

Each is a function for `Server.middleware`, with a state of its own: given to two servers or twice to one, its limit is
shared. Limits hold for calls, reads, prompts, completions, listings and requests of extensions. Streams, questions
about tasks (``tasks/...``), and tasks that run again after a restart pass.
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
"""Milliseconds of the longest time of a limit that replicas share: some thousand years."""

Key: TypeAlias = Callable[[ServerRequest], Hashable]
"""Function that says which requests share a limit: those with equal keys. Keys are kept for a while: keep them small,
and let no client choose them freely."""


def _by_caller(request: ServerRequest) -> Hashable:
    return request.caller


def time_limit(seconds: float) -> MiddlewareFunction:
    """Return middleware that cancels a request after ``seconds``, and tells the client why: in a call by a result with
    ``isError``, else by `CodedError` (-32603).

    The time counts from the start of the middleware, waits in further middleware included, but without the time in
    which the user is asked by `RequestContext.elicit`; for a task until its end. Raises `ValueError` for a limit that
    is not greater than 0.
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
    """Return middleware that lets ``limit`` requests per ``period`` seconds pass, and refuses others by `CodedError`
    (-31000), with the seconds after which to come back as ``retryAfter`` in its ``data``.

    A token bucket for each ``key``, of `ServerRequest.caller` by default; ``key=lambda request: request.offer`` is by
    tool. Up to ``burst`` requests may come at once, by default ``limit``. Refused requests take no token. Of at most
    ``keys`` buckets the one is forgotten, and full again, that was longest without a request. Raises `ValueError` for
    numbers that are not greater than 0.

    Replicas that share a storage (``shared=``) share the buckets of a server, for one round trip per request: of limits
    with equal ``name``, or, without a name, at the same position among the middleware of the server. A key that
    replicas share is text, bytes, an integer, `None`, a `PrincipalId`, or a tuple of keys; requests with any other key
    are counted in each process alone, and the log says so once. So are all requests while the storage cannot be
    reached: the limit of the whole fleet is then as many times as high as there are replicas."""
    burst = limit if burst is None else burst
    for what, number in {"limit": limit, "period": period, "keys": keys, "burst": burst}.items():
        _check_positive(what, number)
    return _RateLimit(limit, period, burst, key, keys, name)


def concurrency_limit(limit: int, *, key: Key = _by_caller) -> MiddlewareFunction:
    """Return middleware that lets ``limit`` requests run at a time for each ``key``, of `ServerRequest.caller` by
    default; further requests wait, in the order of their arrival, within the bounds of `Limits`.

    A handler that is parked, and a task until its end, keeps its place. Raises `ValueError` for a limit that is not
    greater than 0, `TypeError` for one that is no integer.
    """
    _check_positive("limit", limit)
    trio.CapacityLimiter(limit)  # raises here, and not at the first request, for what is no number of places
    limiters: dict[Hashable, trio.CapacityLimiter] = {}

    async def limit_concurrency(request: ServerRequest, next: Next) -> Any:
        if _is_unlimited(request):
            return await next(request)
        name, borrower = key(request), object()
        limiter = limiters.setdefault(name, trio.CapacityLimiter(limit))
        try:
            try:
                limiter.acquire_on_behalf_of_nowait(borrower)  # no checkpoint, which would change the order of handlers
            except trio.WouldBlock:
                await limiter.acquire_on_behalf_of(borrower)
            try:
                return await next(request)
            finally:
                limiter.release_on_behalf_of(borrower)
        finally:
            if not limiter.borrowed_tokens and limiters.get(name) is limiter:  # what waits is given tokens at once
                del limiters[name]

    return limit_concurrency


audit: Final = unlimited_logger("trio_mcp.audit")
"""The log of `audit_log`. Written in the thread of the log, and in the share of nobody."""


def audit_log(log: logging.Logger = audit, *, arguments: Collection[str] = ()) -> MiddlewareFunction:
    """Return middleware that writes a record at level info for each request that has ended: who, what, how long, with
    which outcome and cause.

    ``log`` is the logger ``trio_mcp.audit`` by default, whose records a thread writes, so that no request waits; the
    handlers of any other logger run in trio's thread. Programs find ``method``, ``offer``, ``caller``, ``outcome``,
    ``cause``, ``duration`` in seconds, and ``arguments`` as attributes of the record. Outcomes are ``ok``, ``failed``
    (a tool says so), ``error``, ``asked`` (the client is asked, and comes back) and ``cancelled``; causes are codes,
    types of exceptions and `CancelCause`. No words of a peer, of a result or of an exception are logged, but the name
    of the caller and, for each name in ``arguments``, the text, number or truth value that the client gave, 200
    characters at most.
    """
    if isinstance(arguments, str):
        raise TypeError(f"arguments are several:\n    wrong:  {arguments!r}\n    right:  [{arguments!r}]")
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
    """Return whether no limit holds: for streams, and for requests about tasks, which may wait for the end of a task,
    or cancel one. `Limits` bounds both."""
    return request._streams or request.method.startswith("tasks/")


def _is_unlimited(request: ServerRequest) -> bool:
    """Return whether no limit of numbers holds: beside limits, and for tasks that run again."""
    task = request.ctx.task
    return _is_exempt(request) or (task is not None and task.has_started)


def _check_positive(name: str, number: float) -> None:
    if not number > 0:
        raise ValueError(f"{name} must be greater than 0, not {number!r}")


class _RateLimit(PositionedMiddleware):
    """The middleware that `rate_limit` returns, with one state for all its positions."""

    def __init__(self, most: int, per: float, burst: int, key: Key, keys: int, name: str | None) -> None:
        self._most = most
        self._per = per
        self._burst = burst
        self._key = key
        self._name = name
        self._buckets = _Buckets(per / most, burst, keys)
        self._has_warned = False
        self._is_storage_down = False
        """True while the storage that the replicas share cannot be reached."""

    async def __call__(self, request: ServerRequest, next: Next) -> Any:
        """Answer a request, counted in this process."""
        return await self._limit(None, request, next)

    def at_position(self, position: int) -> MiddlewareFunction:
        """Return the middleware for a server: see `PositionedMiddleware`."""
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
        """Take a token of a bucket that all replicas share, and return the seconds to wait, as `_Buckets.acquire` does;
        `None` where that cannot be done."""
        try:
            digest = sha256(limit + _plain(key)).digest()
        except TypeError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("a limit of rates counts some requests in each process alone: %s", error)
            return None
        per = min(self._per * 1000, _LONGEST)
        try:
            wait = await rates.acquire(digest, limit=self._most, period_ms=max(1, round(per)), burst=self._burst)
        except OSError as error:
            if not self._is_storage_down:
                self._is_storage_down = True
                logger.warning("a limit of rates counts in each process alone, until that ends: %s", error)
            return None
        self._is_storage_down = False
        return wait / 1000


def _plain(key: object) -> bytes:
    """Return ``key`` as bytes, the same in each process, and others for any other key. Raises `TypeError` for an
    object without such a form."""
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
            raise TypeError(f"a shared key is text, bytes, an integer or a tuple, not {type(key).__name__}")


class _Buckets:
    """Token buckets by their keys. A bucket of ``burst`` tokens gets one each ``interval`` seconds. All that is kept of
    a bucket is the time at which it is full again; one that nothing is kept of is full."""

    def __init__(self, interval: float, burst: int, limit: int) -> None:
        self._interval = interval
        self._burst = burst
        self._full_at = BoundedDict[Hashable, float](limit)

    def acquire(self, key: Hashable, now: float) -> float:
        """Take a token of a bucket, and return 0; or take none, and return the seconds until there is one."""
        full_at = max(self._full_at.get(key, now), now) + self._interval
        wait = full_at - now - self._interval * self._burst
        if wait > 1e-9:  # of sums of intervals, less than a millionth of a millisecond says nothing
            return wait
        self._full_at[key] = full_at
        return 0


_End: TypeAlias = tuple[str, str | None]
"""The outcome of a request, and its cause."""


def _end_of(request: ServerRequest, error: BaseException) -> _End:
    """Return the outcome and the cause of a request that has raised ``error``."""
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
    """Write the record of a request that has ended."""
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
    """Return an argument for the log: nothing that takes long to write."""
    if isinstance(value, str):
        return clean(value[:200])
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 128):
        return value
    return f"<{type(value).__name__}>"
