"""CachedRequests: requests that are sent only where no fresh answer is kept."""

from __future__ import annotations

from typing import Any, Final

import trio

from ...jsonrpc.codec import canonical_value
from ...jsonrpc.errors import NotSerializable, PeerError
from ...protocol.fields import JSONObject
from ...protocol.meta import BAGGAGE, LOG_LEVEL, PROGRESS_TOKEN, TRACEPARENT, TRACESTATE
from ...protocol.methods import ROWS
from ...protocol.revisions import Revision
from ...runtime.calls.outbound import Outbound
from ...runtime.on_progress import OnProgress
from ..cache import CachePartition, RequestKey
from .input_responses import InputRounds

__all__ = ["CACHEABLE", "CachedRequests"]

CACHEABLE: Final = frozenset(row.name for row in ROWS if row.cacheable)
"""The methods with answers that may be kept; requests of other methods need not come here."""

_WITHOUT_EFFECT: Final = frozenset({BAGGAGE, LOG_LEVEL, PROGRESS_TOKEN, TRACEPARENT, TRACESTATE})
"""Keys of ``_meta`` that have no effect on the result. All other keys are part of the cache key: a server may list
other tools to a client that can do more."""


class CachedRequests:
    """Sends requests of `CACHEABLE` methods, in revisions with cache hints, as ``rounds`` does, except for requests
    with an answer in ``partition``.

    Without a partition nothing is kept.
    """

    def __init__(self, rounds: InputRounds, outbound: Outbound, partition: CachePartition | None) -> None:
        self._rounds = rounds
        self._outbound = outbound
        self._partition = partition

    async def request(
        self,
        method: str,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        *,
        refresh: bool,
    ) -> Any:
        """Return the result, plain data that is the caller's own. ``refresh``: send the request in any case, and keep
        the answer.

        A kept answer is given on a living connection only, after a checkpoint. A result of more than one round is not
        kept: the result depends on the answers given in between (2026-07-28 caching, Cache Key: MUST NOT).
        """
        key = None if self._partition is None else _key_of(method, params)
        if self._partition is None or key is None:
            return (await self._rounds.request(method, params, revision, on_progress)).result
        cache = self._partition.cache
        if len(cache) and not refresh:
            with self._outbound.while_connected():
                await trio.lowlevel.checkpoint()
            kept = cache.find(self._partition, key, trio.current_time())
            if kept is not None:
                return kept
        with cache.fetching(self._partition, key) as fetch:
            try:
                completed = await self._rounds.request(method, params, revision, on_progress)
            except PeerError as error:
                fetch.refused(error.code)
                raise
            if completed.rounds == 1:
                fetch.keep(completed.result, completed.received)
            return completed.result


def _key_of(method: str, params: JSONObject) -> RequestKey | None:
    """Return the key of a request; `None` where the answer is not to be kept."""
    if "inputResponses" in params or "requestState" in params:
        return None  # Cache Key: results of such requests MUST NOT be cached
    meta = {key: value for key, value in params.get("_meta", {}).items() if key not in _WITHOUT_EFFECT}
    try:
        text = canonical_value({**params, "_meta": meta})
    except NotSerializable:
        return None  # not sendable either, which the attempt to send reports
    uri, cursor = params.get("uri"), params.get("cursor")
    return RequestKey(method, text, uri if isinstance(uri, str) else None, cursor if isinstance(cursor, str) else None)
