"""`keep_large_results`: middleware that shortens large results and links to the full ones."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
import trio

from ..classes import frozen
from ..concurrency.fair_share import leaves_enough
from ..concurrency.wakeups import Alarm, Alarms
from ..jsonrpc.codec import decode_value, encode_readable
from ..protocol.converters import unstructure
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from ..protocol.types.tools import CallToolResult, ListToolsResult
from ..runtime.requests.host import RequestHost
from .context.request_context import RequestContext, scope_of
from .context.state import owner_of
from .middleware import Next, ServerRequest
from .offers.resources import ResourceNotFound
from .server import Server

_URI: Final = "result://kept/"
_ID_BYTES: Final = 32


def keep_large_results(
    server: Server,
    max_bytes: int = 64 * 1024,
    *,
    preview: int = 2000,
    ttl: float = 600.0,
    total_bytes: int = 64 * 1024 * 1024,
) -> None:
    """Shorten large tool results. The client gets the beginning of such a result, and a link to the full result.

        keep_large_results(server, 100_000)

    A call whose result has more than ``max_bytes`` bytes of JSON is answered with the first ``preview`` characters of
    its text and a ``resource_link``.

    Args:
        server: A `Server` or a `Gateway`.
        max_bytes: Size of JSON, in bytes, above which a result is shortened.
        preview: Characters of text that the client gets at once; may be 0.
        ttl: Seconds for which this process keeps the full result.
        total_bytes: Limit of all full results together. A caller gets at most as much as it leaves free for others; its
            oldest results are dropped first.

    The link is ``result://kept/`` with a random id. Only the caller of the tool can read it: the same principal,
    session or connection, as for `RequestContext.state`. For a modern HTTP client without a token, any client that has
    the link can.

    If there is no room for a full result, only its beginning is kept, and the text of the result reports this. The same
    applies to a task that runs again after a restart, unless its client had a token.

    A shortened answer has no structured content and no ``_meta``. Therefore the server no longer lists output schemas:
    clients would validate the answer against them. Raises `ValueError` unless the numbers are greater than 0.
    """
    for name, number in (("max_bytes", max_bytes), ("ttl", ttl), ("total_bytes", total_bytes)):
        if not number > 0:
            raise ValueError(f"{name} must be greater than 0, not {number!r}")
    if preview < 0:
        raise ValueError(f"preview must be 0 or more, not {preview!r}")
    stores = WeakKeyDictionary[RequestHost, _KeptResults]()

    async def cut(request: ServerRequest, next: Next) -> Any:
        result = await next(request)
        if not isinstance(result, CallToolResult):
            return result
        size = len(encode_readable(unstructure(result, LATEST_MODERN)))
        if size <= max_bytes:
            return result
        host = scope_of(request.ctx).runner.host
        kept = stores.setdefault(host, _KeptResults(host.alarms, ttl, total_bytes))
        content = _shortened(kept, request, result, size, preview)
        return CallToolResult(content, is_error=result.is_error)

    async def list_without_schemas(request: ServerRequest, next: Next) -> Any:
        result: ListToolsResult = await next(request)
        return attrs.evolve(result, tools=[attrs.evolve(tool, output_schema=None) for tool in result.tools])

    async def read(id: str, ctx: RequestContext) -> list[ResourceContents]:
        """Resource handler: return a stored large tool result in full."""
        scope = scope_of(ctx)
        kept = stores.get(scope.runner.host)
        contents = None if kept is None else kept.find(f"{_URI}{id}", owner_of(scope))
        if contents is None:
            raise ResourceNotFound
        return contents

    server.middleware("tools/call")(cut)
    server.middleware("tools/list")(list_without_schemas)
    server.resource(f"{_URI}{{id}}", name="large result", cache_scope="private")(read)


def _shortened(
    kept: _KeptResults, request: ServerRequest, result: CallToolResult, size: int, preview: int
) -> list[ContentBlock]:
    """Store the large tool result ``result`` in ``kept``, and return a shortened version. ``size`` is its size in
    bytes.

    Return the first ``preview`` characters of its text and, if the result could be stored, a link to the full result.
    """
    scope = scope_of(request.ctx)
    owner, uri = owner_of(scope), None
    if owner is None and scope.exchange.forgot_client:
        rest = "The rest was not stored, because the server was restarted and this client had no token"
    elif (uri := kept.add(request.caller, owner, result, size)) is None:
        rest = "The rest was too large to store"
    else:
        rest = f"Read the full result at {uri} within {kept.ttl:g} seconds"
    words = result.text or _json(result.structured_content)
    content: list[ContentBlock] = [TextContent(f"{words[:preview]}\n[{size:,} bytes. {rest}.]")]
    if uri is not None:
        content.append(ResourceLink(f"result of {request.offer or 'a tool'}", uri, size=size))
    return content


@frozen(eq=False)
class _Kept:
    contents: list[ResourceContents] = attrs.field(repr=False)
    size: int
    caller: Hashable
    owner: bytes | None
    alarm: Alarm


class _KeptResults:
    """The full large tool results that one running server stores, by URI, with the oldest first."""

    def __init__(self, alarms: Alarms, ttl: float, limit: int) -> None:
        self._alarms = alarms
        self.ttl = ttl
        """Seconds for which each result is kept."""
        self._limit = limit
        self._kept: dict[str, _Kept] = {}
        self._sizes = Counter[Hashable]()
        """The number of bytes stored for each caller."""

    def add(self, caller: Hashable, owner: bytes | None, result: CallToolResult, size: int) -> str | None:
        """Store a tool result of ``size`` bytes for the caller ``owner``, and return its URI. Return `None` if the
        result would exceed a memory limit."""
        if 2 * size > self._limit:  # one caller gets at most half of the memory limit
            return None
        while not leaves_enough(self._sizes[caller], self._limit - self._sizes.total(), size):
            oldest = next((uri for uri, each in self._kept.items() if each.caller == caller), None)
            if oldest is None:
                return None
            self._drop(oldest)
        uri = f"{_URI}{secrets.token_urlsafe(_ID_BYTES)}"
        alarm = self._alarms.set(trio.current_time() + self.ttl, partial(self._drop, uri))
        self._kept[uri] = _Kept(_contents(uri, result), size, caller, owner, alarm)
        self._sizes[caller] += size
        return uri

    def find(self, uri: str, owner: bytes | None) -> list[ResourceContents] | None:
        """Return the stored tool result with this ``uri``. Return `None` if this result belongs to another caller or
        was dropped."""
        kept = self._kept.get(uri)
        return None if kept is None or kept.owner != owner else kept.contents

    def _drop(self, uri: str) -> None:
        kept = self._kept.pop(uri)
        kept.alarm.stop()
        self._sizes[kept.caller] -= kept.size
        if not self._sizes[kept.caller]:
            del self._sizes[kept.caller]


def _contents(uri: str, result: CallToolResult) -> list[ResourceContents]:
    """Return a tool result as resource contents. They contain its content blocks, and its structured content unless a
    text block has the same JSON."""
    contents = list[ResourceContents]()
    for block in result.content:
        match block:
            case TextContent(text=text):
                contents.append(TextResourceContents(uri, text, "text/plain"))
            case ImageContent(data=data, mime_type=mime_type) | AudioContent(data=data, mime_type=mime_type):
                contents.append(BlobResourceContents(uri, data, mime_type))
            case EmbeddedResource(resource=resource):
                contents.append(resource)
            case _:
                text = _json(unstructure(block, LATEST_MODERN))
                contents.append(TextResourceContents(uri, text, "application/json"))
    data = result.structured_content
    if data is not None and not _says(result.text, data):
        contents.append(TextResourceContents(uri, _json(data), "application/json"))
    return contents


def _json(value: Any) -> str:
    return "" if value is None else encode_readable(value).decode()


def _says(text: str, data: Any) -> bool:
    """Return whether ``text`` is ``data`` as JSON text. Servers send structured content as text, too, for clients that
    support only text."""
    if data == {"result": text}:
        return True
    try:
        said = decode_value(text.encode())
    except (ValueError, RecursionError):
        return False
    return data in (said, {"result": said})
