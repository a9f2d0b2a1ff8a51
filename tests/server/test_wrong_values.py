"""An author's wrong value is an error of the request that meets it, and of nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trio_mcp import NotSerializable, PeerError, Server, open_memory
from trio_mcp.types import CallToolResult


async def test_list_request_fails_if_an_item_cannot_be_encoded_as_json_but_calls_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s")

    @server.tool(annotations=cast("Any", object()))
    async def tool() -> str:
        return "fine"

    async with open_memory(server) as client:
        with pytest.raises(PeerError) as caught:
            [tool async for tool in client.list_tools()]
        assert (await client.call_tool("tool")).text == "fine"
    assert (caught.value.code, caught.value.message) == (-32603, "Internal error")
    assert "tools/list" in caplog.text


async def test_initialize_gets_internal_error_if_the_server_information_cannot_be_encoded_as_json() -> None:
    server = Server("s", instructions=cast("Any", object()))
    async with open_memory(Server("other")) as other:
        with pytest.raises(PeerError, match="Internal error"):
            async with open_memory(server, era="legacy"):
                pass
        await other.ping()


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def deep_server() -> Server:
    """Whatever it is asked for is nested as deep as the caller says."""
    server = Server("deep")

    @server.tool
    async def untyped(levels: int):  # type: ignore[no-untyped-def]
        return nested(levels)

    @server.tool
    async def typed(levels: int) -> list[Any]:
        return nested(levels)

    @server.tool(output_schema={"type": "object"}, check_output=True)
    async def validated(levels: int) -> CallToolResult:
        return CallToolResult(structured_content={"a": nested(levels)})

    @server.tool(output_schema={"type": "object"})
    async def unchecked(levels: int) -> CallToolResult:
        return CallToolResult(structured_content={"a": nested(levels)})

    @server.tool
    async def echo(value: Any) -> str:
        return "fine"

    @server.resource("deep://{levels}")
    async def resource(levels: int):  # type: ignore[no-untyped-def]
        return nested(levels)

    return server


@pytest.mark.parametrize("levels", [300, 3000, 100_000])
@pytest.mark.parametrize("tool", ["untyped", "typed", "unchecked"])
async def test_tool_result_nested_too_deeply_causes_an_error_without_a_traceback(
    tool: str, levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_memory(deep_server()) as client:
        failed = await client.call_tool(tool, {"levels": levels})
        assert not (await client.call_tool(tool, {"levels": 100})).is_error
    assert failed.is_error
    assert failed.text == f"internal error in tool {tool}: the result cannot be sent as JSON"
    assert "Traceback" not in caplog.text
    assert "RecursionError" not in caplog.text


@pytest.mark.parametrize("levels", [300, 3000, 100_000])
async def test_tool_result_nested_too_deep_fails_output_validation(
    levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_memory(deep_server()) as client:
        refused = await client.call_tool("validated", {"levels": levels})
        assert refused.is_error
        assert "does not fit its output schema: there are more than 256 levels" in refused.text
        assert not (await client.call_tool("validated", {"levels": 100})).is_error
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("levels", [300, 3000, 100_000])
async def test_resource_result_nested_too_deeply_causes_an_error_without_a_traceback(
    levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_memory(deep_server()) as client:
        with pytest.raises(PeerError) as caught:
            await client.read_resource(f"deep://{levels}")
    assert caught.value.code == -32603
    assert "cannot be sent" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("levels", [300, 3000, 100_000])
async def test_call_arguments_nested_too_deep_raise_in_the_client(levels: int) -> None:
    async with open_memory(deep_server()) as client:
        with pytest.raises(NotSerializable, match="256 levels"):
            await client.call_tool("echo", {"value": nested(levels)})
        assert (await client.call_tool("echo", {"value": nested(100)})).text == "fine"
