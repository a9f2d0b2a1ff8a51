"""ResponseCache: answers of modern servers, kept while fresh (2026-07-28 caching).

A Change is a list or a resource of the server that has changed, so that kept answers are stale.

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
"""The kinds of changes that make cached answers stale."""


@frozen
class Change:
    """A change: the list of ``tools``, ``prompts`` or ``resources`` has changed, or a ``resource`` has new contents.

    ``uri`` is the URI of the resource, which may be part of the resource subscribed to; `None` for lists.
    """

    kind: ChangeKind
    """Kind of the change: `tools`, `prompts`, `resources` or `resource`."""
    uri: str | None = None


def change_in(event: NotificationReceived) -> Change | None:
    """Return the change that a notification tells of; `None` for other notifications and for malformed notifications,
    since a notification has no error reply."""
    name = event.method.name
    if name == "notifications/resources/updated":
        try:
            return Change("resource", structure(event.params, ResourceUpdatedParams).uri)
        except ValueError:
            return None
    return Change(cast("ChangeKind", name.split("/")[1])) if name.endswith("/list_changed") else None


def kinds_in(asked: SubscriptionFilter) -> frozenset[ChangeKind]:
    """Return the kinds of changes on a stream with the filter ``asked``."""
    kinds: list[ChangeKind] = [*lists_in(asked)]
    return frozenset([*kinds, "resource"] if asked.resource_subscriptions else kinds)


_PUBLIC: Final = "public"
_OUTDATED_BY: Final = {
    "tools": ("tools/list", "server/discover"),
    "prompts": ("prompts/list", "server/discover"),
    "resources": ("resources/list", "resources/templates/list", "skills/list", "server/discover"),
    "resource": ("resources/read", "skills/get"),
}
"""Methods with answers that become stale, for each kind of change. Capabilities may come and go with the first and the
last item of a list."""


@frozen
class RequestKey:
    """The request that an answer belongs to (2026-07-28 caching, Cache Key)."""

    method: str
    params: bytes
    """Parameters that affect the result, as canonical JSON."""
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
    """A request under way, with an answer that may be kept."""

    partition: CachePartition
    request: RequestKey
    is_outdated: bool = False
    """True when the answer may be older than a change that was seen, or than an earlier answer."""

    def store(self, result: Any, received: float) -> None:
        """Keep the answer, which came at ``received``, if its hints allow that. Any answer, kept or not, replaces the
        answer kept before, except the answer to an outdated fetch."""
        self.partition._cache._answered(self, result, received)

    def record_error(self, code: int) -> None:
        """Take note of an error reply: the kept answer is outdated; after a bad cursor, all pages of the list are
        outdated."""
        request = self.request
        if request.cursor is not None and code == INVALID_PARAMS:
            # Interaction with Pagination: SHOULD discard all cached pages.
            self.partition._cache._outdate(self.partition._server, request.method)
        else:
            self.partition._forget(request)


class ResponseCache:
    """Answers of modern servers, kept for as long as their hints promise freshness, for any number of clients.

    At most ``max_entries`` answers are kept, and ``max_bytes`` of answers and their requests; the least recently used
    go first. No answer is taken for fresh longer than ``max_ttl`` seconds, for any hint of its server. A cache belongs
    to one `trio.run` and uses the clock of that run. Raises `ValueError` for bounds below 0 and for a ``max_ttl``
    without end.

    Any thread may remove answers or mark them as outdated.

    Callers get copies, so no caller can change a kept answer. `partition` decides which answers a caller may see.
    """

    def __init__(
        self, *, max_entries: int = 1000, max_bytes: int = 16 * 1024 * 1024, max_ttl: float = 24 * 3600.0
    ) -> None:
        if not (max_entries >= 0 and max_bytes >= 0 and 0 <= max_ttl < inf):
            raise ValueError(f"a bound is finite and not negative: {max_entries}, {max_bytes}, {max_ttl}")
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
        """Bytes of all answers and requests that are kept."""
        return self._bytes

    def partition(self, server: str | None = None, principal: str | None = None) -> CachePartition:
        """Return the part of the cache for clients of ``server`` that act for ``principal``, for their option
        ``cache``.

        Clients share public answers with all partitions of the same ``server``, and private answers with partitions of
        the same ``principal`` as well. `None`, as server or as principal, is shared with nobody. Both names are yours:
        an endpoint and a user, for example. The name that a server gives itself never counts. A principal is one
        authorization context: other rights need another name.
        """
        return CachePartition(
            self, object() if server is None else server, object() if principal is None else ("principal", principal)
        )

    def _find(self, partition: CachePartition, request: RequestKey, now: float) -> Any:
        """Return a copy of the fresh answer that this partition may see; `None` when there is none."""
        with self._lock:
            for key in partition._keys(request):
                entry = self._entries.get(key)
                if entry is None:
                    continue
                # Freshness Calculation: fresh while now < t_received + ttlMs.
                if now < entry.fresh_until:
                    self._entries.move_to_end(key)
                    try:
                        return decode_value(entry.body)
                    except RecursionError:
                        pass  # stored where more stack was left than here
                self._remove(key)
        return None

    @contextmanager
    def _fetching(self, partition: CachePartition, request: RequestKey) -> Generator[PendingAnswer]:
        """Send ``request`` inside. Changes seen inside outdate the answer."""
        fetch = PendingAnswer(partition, request)
        with self._lock:
            self._fetches[fetch] = None
        try:
            yield fetch
        finally:
            with self._lock:
                del self._fetches[fetch]

    def _answered(self, fetch: PendingAnswer, result: Any, received: float) -> None:
        """Keep the answer to a fetch. See `PendingAnswer.store`."""
        if fetch.is_outdated:
            return
        self._outdate_earlier(fetch)
        fetch.partition._forget(fetch.request)
        if not isinstance(result, dict):
            return  # malformed, which is reported where the result is read
        hints = cast("JSONObject", result)
        ttl = min(ttl_ms_in(hints), self._max_ttl * 1000) / 1000
        if ttl == 0:
            return
        try:
            body = encode_value(result)
        except NotSerializable:
            return  # read where more of the stack was left than here
        private, public = fetch.partition._keys(fetch.request)
        with self._lock:
            if not fetch.is_outdated:  # meanwhile, by another thread
                self._add(public if scope_in(hints) == "public" else private, body, received + ttl)

    def _outdate_earlier(self, fetch: PendingAnswer) -> None:
        """Outdate the fetches of the same request that began earlier: their answers may tell of an earlier state."""
        with self._lock:
            for earlier in self._fetches:
                if earlier is fetch:
                    return
                if earlier.partition._server == fetch.partition._server and earlier.request == fetch.request:
                    earlier.is_outdated = True

    def _outdate(self, server: object, method: str, uri: str | None = None) -> None:
        """Forget the answers of ``server`` to ``method``, and do not keep answers that are still under way. With
        ``uri``, only answers read at or above that URI, since the changed resource may be a part of the resource
        above."""
        with self._lock:
            for fetch in self._fetches:
                if (fetch.partition._server, fetch.request.method) == (server, method) and _holds(fetch.request, uri):
                    fetch.is_outdated = True
            for key in [key for key in self._by_method.get((server, method), ()) if _holds(key.request, uri)]:
                self._remove(key)

    def _forget(self, key: _CacheKey) -> None:
        """Drop the answer under ``key``, if any."""
        with self._lock:
            if key in self._entries:
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
    """The part of a `ResponseCache` that one authorization context may see, made by `ResponseCache.partition`."""

    _cache: ResponseCache
    """Cache that the part belongs to, and that bounds its size."""
    _server: object
    """Server that gave the answers."""
    _owner: object
    """Principal who may see the private answers."""

    def _keys(self, request: RequestKey) -> tuple[_CacheKey, _CacheKey]:
        """Return the keys under which a private and a public answer is kept."""
        return _CacheKey(self._server, self._owner, request), _CacheKey(self._server, _PUBLIC, request)

    def _forget(self, request: RequestKey) -> None:
        """Drop the answers that are kept for ``request``."""
        for key in self._keys(request):
            self._cache._forget(key)

    def _changed(self, change: Change) -> None:
        """Outdate the answers that a change of the server makes stale (2026-07-28 caching, Interaction with
        Notifications)."""
        for method in _OUTDATED_BY[change.kind]:
            self._cache._outdate(self._server, method, change.uri)
        if change.kind == "resource":
            self._cache._outdate(self._server, "skills/list")  # an entry tells of each file (SEP-2640, Resources)


def _holds(request: RequestKey, uri: str | None) -> bool:
    """Return whether a change at ``uri``, or at any place for `None`, is or may be part of the requested resource or
    list."""
    return uri is None or (request.uri is not None and uri.startswith(request.uri))
