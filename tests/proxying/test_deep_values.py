"""What is nested deep passes a proxy, and what is nested too deep is an error that says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.interaction.client.deep import MOST_BELOW, deep
from tests.interaction.client.raw import scripted

from trio_mcp import Client, NotSerializable, PeerError, open_memory, proxy
from trio_mcp.client.opening import open_client

TOO_DEEP = [300, 5000, 100_000]


def depth_of(value: Any) -> int:
    levels = 0
    while isinstance(value, dict | list):
        value, levels = next(iter(value.values() if isinstance(value, dict) else value)), levels + 1
    return levels


def nested(levels: int, *, objects: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


@asynccontextmanager
async def through(levels: int, front: Any, back: str, *, objects: bool = True) -> AsyncGenerator[Client]:
    """A client of a proxy before a server with values so deep."""
    async with scripted(deep(levels, modern=back == "modern", objects=objects)) as (channel, _):

        def behind(**options: Any) -> AbstractAsyncContextManager[Client]:
            if back == "modern":
                options.pop("revision", None)
            return open_client(channel, **{**options, "era": back})

        async with open_memory(proxy(behind), era=front) as client:
            yield client


def assert_calm(caplog: pytest.LogCaptureFixture) -> None:
    assert "Traceback" not in caplog.text
    assert "RecursionError" not in caplog.text


@pytest.mark.parametrize("objects", [True, False])
async def test_proxy_forwards_a_value_that_is_nested_up_to_the_depth_limit(
    autojump_clock: object, front: Any, back: str, objects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with through(MOST_BELOW - 1, front, back, objects=objects) as client:
        (tool,) = [tool async for tool in client.list_tools()]
        assert depth_of(tool.input_schema["properties"]["x"]["default"]) == MOST_BELOW - 1
        result = await client.call_tool("deep")
        assert depth_of(result.structured_content) == MOST_BELOW
        counted = await client.call_tool("count", {"value": nested(MOST_BELOW - 1, objects=objects)})
        assert counted.text == str(MOST_BELOW - 1)
    assert_calm(caplog)


@pytest.mark.parametrize("levels", TOO_DEEP)
async def test_proxied_call_with_a_too_deeply_nested_result_fails_without_ending_the_connection(
    autojump_clock: object, front: Any, back: str, levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with through(levels, front, back) as client:
        with pytest.raises(PeerError, match="the upstream server's answer is invalid"):
            [tool async for tool in client.list_tools()]
        with pytest.raises(PeerError, match="the upstream server's answer is invalid"):
            await client.call_tool("deep")
        assert (await client.call_tool("count")).text == "0"
    assert_calm(caplog)


@pytest.mark.parametrize("levels", TOO_DEEP)
@pytest.mark.parametrize("objects", [True, False])
async def test_arguments_nested_too_deeply_raise_not_serializable(
    autojump_clock: object, front: Any, back: str, levels: int, objects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with through(1, front, back) as client:
        with pytest.raises(NotSerializable, match="256 levels"):
            await client.call_tool("count", {"value": nested(levels, objects=objects)})
        assert (await client.call_tool("count")).text == "0"
    assert_calm(caplog)
