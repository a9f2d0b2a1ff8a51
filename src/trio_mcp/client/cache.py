"""The cache for responses of modern servers (2026-07-28 caching).

A `Change` names a list or resource of the server that has changed, so that cached responses about it are stale.

This module does not use trio: callers pass the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from math import inf
from threading import RLock
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from ..classes import define, frozen
from ..concurrency.contexts import contextmanager
from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import INVALID_PARAMS, NotSerializable
from ..protocol.converters import structure
from ..protocol.fields import JSONObject
from ..protocol.types.lifecycle import scope_in, ttl_ms_in
from ..protocol.types.notifications import ResourceUpdatedParams, SubscriptionFilter, lists_in
from ..state.events import NotificationReceived

ChangeKind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]
"""The kinds of changes that make cached responses stale."""


@frozen
class Change:
    """A change that the server reported: the list of ``tools``, ``prompts`` or ``resources`` changed, or a ``resource``
    has new contents."""

    kind: ChangeKind
    """Kind of the change: `tools`, `prompts`, `resources` or `resource`."""
    uri: str | None = None
    """URI of the changed resource, or of the changed part of a subscribed resource; `None` if a list changed."""


def change_in(event: NotificationReceived) -> Change | None:
    """Return the change of a list or resource that a notification reports. Returns `None` for any other notification.

    Also returns `None` for a malformed notification, because notifications get no error reply.
    """
    name = event.method.name
    if name == "notifications/resources/updated":
        try:
            return Change("resource", structure(event.params, ResourceUpdatedParams).uri)
        except ValueError:
            return None
    return Change(cast("ChangeKind", name.split("/")[1])) if name.endswith("/list_changed") else None


def kinds_in(asked: SubscriptionFilter) -> frozenset[ChangeKind]:
    """Return the kinds of changes that a ``subscriptions/listen`` stream with the filter ``asked`` reports."""
    kinds: list[ChangeKind] = [*lists_in(asked)]
    return frozenset([*kinds, "resource"] if asked.resource_subscriptions else kinds)


_PUBLIC: Final = "public"
_OUTDATED_BY: Final = {
    "tools": ("tools/list", "server/discover"),
    "prompts": ("prompts/list", "server/discover"),
    "resources": ("resources/list", "resources/templates/list", "skills/list", "server/discover"),
    "resource": ("resources/read", "skills/get"),
}
"""The methods whose responses become stale, for each kind of change. ``server/discover`` is included, because a server
may add or drop a capability together with the first or last item of a list."""


@frozen
class RequestKey:
    """Identifies the request that a cached response belongs to (2026-07-28 caching, Cache Key)."""

    method: str
    params: bytes
    """The request's parameters that affect the response, as canonical JSON."""
    uri: str | None = None
    cursor: str | None = None


class _CacheKey(NamedTuple):
    server: object
    owner: object
    request: RequestKey


@frozen(eq=False)
class _CacheEntry:
    body: bytes
    fresh_until: float
    size: int


@define(eq=False)
class PendingAnswer:
    """A request whose response hasn't arrived yet. The client's cache may store the response."""

    partition: CachePartition
    request: RequestKey
    is_outdated: bool = False
    """True if the response may be older than a change that the server reported, or older than another response to the
    same request."""

    def store(self, result: Any, received: float) -> None:
        """Cache the response, which was received at the time ``received``, if its cache hints allow that.

        A previously cached response is dropped in any case, unless this request is outdated.
        """
        cache = self.partition._cache
        if self.is_outdated:
            return
        cache._outdate_earlier(self)
        self.partition._forget(self.request)
        if not isinstance(result, dict):
            return  # no error here: the code that reads the result reports a malformed value
        hints = cast("JSONObject", result)
        ttl = min(ttl_ms_in(hints), cache._max_ttl * 1000) / 1000
        if ttl == 0:
            return
        try:
            body = encode_value(result)
        except NotSerializable:
            return  # don't cache a response that is nested too deeply for the remaining stack
        private, public = self.partition._keys(self.request)
        with cache._lock:
            if not self.is_outdated:  # another thread may have marked the request as outdated meanwhile
                cache._add(public if scope_in(hints) == "public" else private, body, received + ttl)

    def record_error(self, code: int) -> None:
        """Drop the cached response, because the server has answered with an error. After an error for an invalid
        cursor, drop all cached pages of the list."""
        request = self.request
        if request.cursor is not None and code == INVALID_PARAMS:
            # By MCP 2026-07-28 (caching page), clients SHOULD discard all cached pages after an invalid cursor.
            self.partition._cache._outdate(self.partition._server, request.method)
        else:
            self.partition._forget(request)


class ResponseCache:
    """Cached responses of servers with modern protocol revisions, for any number of clients. Each response is kept for
    as long as its server allows.

    Callers get copies, so no caller can change a cached response. `partition` decides which responses a caller may see.
    A cache belongs to one `trio.run` and uses the clock of that run. Any thread may remove responses or mark them as
    outdated.

    Args:
        max_entries: How many responses are cached; the least recently used are dropped first.
        max_bytes: How many bytes the cached responses and their requests may have together.
        max_ttl: For how many seconds a response counts as fresh at most, whatever its server's hints say.

    Raises:
        ValueError: A bound is below 0, or ``max_ttl`` is infinite.
    """

    def __init__(
        self, *, max_entries: int = 1000, max_bytes: int = 16 * 1024 * 1024, max_ttl: float = 24 * 3600.0
    ) -> None:
        if not (max_entries >= 0 and max_bytes >= 0 and 0 <= max_ttl < inf):
            raise ValueError(
                "max_entries, max_bytes and max_ttl must be finite and not negative, "
                f"not {max_entries}, {max_bytes} and {max_ttl}"
            )
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_ttl = max_ttl
        self._entries: OrderedDict[_CacheKey, _CacheEntry] = OrderedDict()
        self._by_method: dict[tuple[object, str], dict[_CacheKey, None]] = {}
        self._fetches: dict[PendingAnswer, None] = {}
        self._bytes = 0
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """The size of all cached responses and their requests, in bytes."""
        return self._bytes

    def partition(self, server: str | None = None, principal: str | None = None) -> CachePartition:
        """Return the part of the cache for clients that call ``server`` on behalf of ``principal``. Pass it to these
        clients as the option ``cache``.

        All partitions of the same ``server`` share public responses. Private responses are shared only if the
        ``principal`` is the same as well. A partition whose server or principal is `None` shares nothing with other
        partitions.

        Args:
            server: A name that you choose for the server, its endpoint for example. The name that a server gives itself
                isn't used.
            principal: A name that you choose for one authorization context, a user for example. Use another name for
                other rights.
        """
        return CachePartition(
            self, object() if server is None else server, object() if principal is None else ("principal", principal)
        )

    def _find(self, partition: CachePartition, request: RequestKey, now: float) -> Any:
        """Return a copy of the cached response to a request, if the response is fresh and this partition may use it.
        Otherwise return `None`."""
        with self._lock:
            for key in partition._keys(request):
                entry = self._entries.get(key)
                if entry is None:
                    continue
                # By MCP 2026-07-28 (caching page), a response is fresh while now < t_received + ttlMs.
                if now < entry.fresh_until:
                    self._entries.move_to_end(key)
                    try:
                        return decode_value(entry.body)
                    except RecursionError:
                        pass  # ignore cached JSON that is nested too deeply for the remaining stack
                self._remove(key)
        return None

    @contextmanager
    def _fetching(self, partition: CachePartition, request: RequestKey) -> Generator[PendingAnswer]:
        """Record that ``request`` is in flight during the block. If the server reports a change meanwhile, the response
        counts as outdated."""
        fetch = PendingAnswer(partition, request)
        with self._lock:
            self._fetches[fetch] = None
        try:
            yield fetch
        finally:
            with self._lock:
                del self._fetches[fetch]

    def _outdate_earlier(self, fetch: PendingAnswer) -> None:
        """Mark requests in flight as outdated if they equal ``fetch`` and were sent earlier. Their responses may
        describe an earlier state of the server."""
        with self._lock:
            for earlier in self._fetches:
                if earlier is fetch:
                    return
                if earlier.partition._server == fetch.partition._server and earlier.request == fetch.request:
                    earlier.is_outdated = True

    def _outdate(self, server: object, method: str, uri: str | None = None) -> None:
        """Drop the cached responses of ``server`` to ``method``, and mark its requests in flight as outdated.

        With ``uri``, do so only for resources at or above that URI, since the changed resource may be a part of them.
        """
        with self._lock:
            for fetch in self._fetches:
                if (fetch.partition._server, fetch.request.method) == (server, method) and _holds(fetch.request, uri):
                    fetch.is_outdated = True
            for key in [key for key in self._by_method.get((server, method), ()) if _holds(key.request, uri)]:
                self._remove(key)

    def _add(self, key: _CacheKey, body: bytes, fresh_until: float) -> None:
        request = key.request
        size = len(body) + len(request.params) + len(request.uri or "") + len(request.cursor or "")
        if size > self._max_bytes:
            return
        self._entries[key] = _CacheEntry(body, fresh_until, size)
        self._by_method.setdefault((key.server, request.method), {})[key] = None
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: _CacheKey) -> None:
        self._bytes -= self._entries.pop(key).size
        topic = (key.server, key.request.method)
        del self._by_method[topic][key]
        if not self._by_method[topic]:
            del self._by_method[topic]


@frozen(eq=False)
class CachePartition:
    """The part of a `ResponseCache` that one authorization context may read and write. Created by
    `ResponseCache.partition`."""

    _cache: ResponseCache
    """The cache that this partition belongs to. Its size limits apply."""
    _server: object
    """The name of the server that sent the cached responses."""
    _owner: object
    """The name of the principal who may see the private responses."""

    def _keys(self, request: RequestKey) -> tuple[_CacheKey, _CacheKey]:
        """Return two cache keys for a request: one for a private and one for a public response."""
        return _CacheKey(self._server, self._owner, request), _CacheKey(self._server, _PUBLIC, request)

    def _forget(self, request: RequestKey) -> None:
        """Drop the private and the public cached response to ``request``."""
        with self._cache._lock:
            for key in self._keys(request):
                if key in self._cache._entries:
                    self._cache._remove(key)

    def _changed(self, change: Change) -> None:
        """Drop the cached responses that a change on the server makes stale (2026-07-28 caching, Interaction with
        Notifications)."""
        for method in _OUTDATED_BY[change.kind]:
            self._cache._outdate(self._server, method, change.uri)
        if change.kind == "resource":
            # Lists of skills contain their files, so a changed file changes the list (SEP-2640).
            self._cache._outdate(self._server, "skills/list")


def _holds(request: RequestKey, uri: str | None) -> bool:
    """Return whether a change of the resource at ``uri`` affects the response to a request: the request is for this
    resource, or for one that may contain it.

    Returns `True` for any request if ``uri`` is `None`.
    """
    return uri is None or (request.uri is not None and uri.startswith(request.uri))
