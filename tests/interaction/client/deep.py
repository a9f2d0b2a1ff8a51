"""A raw server whose catalogue and results are nested as deep as the test says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from tests.interaction.client.raw import RawPeer, discovery

__all__ = ["MOST_BELOW", "deep", "nested_in_message"]

MOST_BELOW = 256 - 6
"""A value of so many levels has room in any message."""


def nested_in_message(levels: int, *, objects: bool = True) -> str:
    """The text of a value of so many levels."""
    begin, end = ('{"a":', "}") if objects else ("[", "]")
    return begin * levels + "1" + end * levels


def deep(levels: int, *, modern: bool, objects: bool = True) -> Callable[[RawPeer], Awaitable[None]]:
    """Offer the tool ``deep`` with such a schema, and answer its calls with such structured content. All calls are told
    the number of levels of their argument ``value``."""
    value = nested_in_message(levels, objects=objects)
    complete = '"resultType":"complete",' if modern else ""
    cached = '"ttlMs":0,"cacheScope":"private",' if modern else ""

    async def script(peer: RawPeer) -> None:
        if modern:
            await peer.discovered(capabilities={"tools": {}})
        else:
            await peer.handshake(tools={})
        while True:
            message = await peer.read()
            if message.get("method") == "tools/list":
                schema = f'{{"type":"object","properties":{{"x":{{"default":{value}}}}}}}'
                tool = f'{{"name":"deep","inputSchema":{schema}}}'
                body = f'{complete}{cached}"tools":[{tool}]'
            elif message.get("method") == "tools/call":
                called = message["params"]["name"]
                given = str(message["params"].get("arguments", {}).get("value"))
                text = str(given.count("{") + given.count("["))
                body = f'{complete}"content":[{{"type":"text","text":"{text}"}}]'
                body += f',"structuredContent":{{"x":{value}}}' if called == "deep" else ""
            elif message.get("method") == "server/discover":  # once more, from behind a proxy
                body = json.dumps(discovery(capabilities={"tools": {}}))[1:-1]
            else:
                continue
            await peer.write(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{{body}}}}}')

    return script
