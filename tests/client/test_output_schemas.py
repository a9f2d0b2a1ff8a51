"""Structured content is checked against the output schemas of the tools that were listed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hosting.members import describe
from tests.interaction.client.raw import RawPeer, scripted
from trio.testing import MockClock

from trio_mcp import Client
from trio_mcp.client.cache import Change
from trio_mcp.client.opening import open_client
from trio_mcp.client.results import OutputSchemas
from trio_mcp.hosting import open_group
from trio_mcp.types import CallToolResult

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def _serving(schema: Any, *results: Any, revision: str = "2025-11-25") -> Any:
    """A server of the tool ``t``, whose calls get these results, the last one again and again."""
    pending = list(results)

    async def script(peer: RawPeer) -> None:
        await peer.handshake(revision, tools={"listChanged": True})
        while True:
            message = await peer.read()
            if message.get("method") == "tools/list":
                tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
                await peer.result(message, {"tools": [tool]})
            elif message.get("method") == "tools/call":
                result = pending.pop(0) if len(pending) > 1 else pending[0]
                await peer.result(message, {"content": [{"type": "text", "text": "words"}], **result})

    return script


async def _listed(client: Client) -> None:
    assert [tool.name async for tool in client.list_tools()] == ["t"]


_ENDLESS = {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}] * 20}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    ("schema", "result", "fault"),
    [
        (NUMBER, {"structuredContent": {"n": 1}}, None),
        (NUMBER, {"structuredContent": {"n": "one"}}, '"one" is not of type "integer" at n'),
        (NUMBER, {"structuredContent": {}}, '"n" is a required property'),
        (NUMBER, {}, "there is no structured content"),
        (NUMBER, {"isError": True}, None),
        (NUMBER, {"structuredContent": {"n": "x\x1b[2J" * 1000}}, '"x'),
        (None, {"structuredContent": {"n": "one"}}, None),
        ({"type": "thing"}, {"structuredContent": {}}, "the output schema is unusable"),
        ({"$ref": "http://127.0.0.1:9/x"}, {"structuredContent": {}}, "the output schema is unusable"),
        ({"pattern": "(?=x)"}, {"structuredContent": {}}, None),
        ({"items": [{"pattern": f"a{n}"} for n in range(21)]}, {"structuredContent": {}}, None),
        ({"patternProperties": {f"a{n}": False for n in range(21)}}, {"structuredContent": {"a1": 1}}, None),
        ({"patternProperties": 5}, {"structuredContent": {"a1": 1}}, "the output schema is unusable"),
        ({"description": "x" * 60_000, "type": "array"}, {"structuredContent": {}}, None),
        ({**NUMBER, "uniqueItems": True}, {"structuredContent": {"n": list(range(200_000))}}, None),
        (_ENDLESS, {"structuredContent": {}}, "the output schema is unusable"),
    ],
)
async def test_client_validates_a_result_against_the_output_schema_that_the_server_lists(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, schema: Any, result: Any, fault: str | None
) -> None:
    async with scripted(_serving(schema, result)) as (channel, _), open_client(channel) as client:
        assert (await client.call_tool("t")).schema_error is None, "it isn't listed"
        await _listed(client)
        for _ in range(2):
            called = await client.call_tool("t")
            assert called.text == "words"
            assert (called.schema_error is None) is (fault is None)
            assert (fault or "") in (called.schema_error or "")
            assert len(called.schema_error or "") <= 500
            assert (called.schema_error or "").isprintable()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert ["the result of tool t doesn't fit its output schema" in each for each in warnings] == [True] * bool(fault)
    caplog.clear()


async def test_group_call_whose_result_violates_the_output_schema_returns_and_logs_the_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    script = _serving(NUMBER, {"structuredContent": {"n": "one"}})
    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        assert '"one" is not of type' in ((await group.call_tool("a__t")).schema_error or "")
        assert '"one" is not of type' in ((await (await group.start_task("a__t")).result()).schema_error or "")
    assert "doesn't fit its output schema" in caplog.text
    caplog.clear()


async def test_client_ignores_a_schema_error_field_that_the_server_sends(autojump_clock: MockClock) -> None:
    script = _serving(None, {"schemaError": "from the server"})
    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert (await client.call_tool("t")).schema_error is None


async def test_client_does_not_validate_results_in_a_revision_without_structured_content(
    autojump_clock: MockClock,
) -> None:
    script = _serving(NUMBER, {}, revision="2025-03-26")
    async with scripted(script) as (channel, _), open_client(channel) as client:
        await _listed(client)
        assert (await client.call_tool("t")).schema_error is None


async def test_list_change_discards_the_cached_output_schemas(autojump_clock: MockClock) -> None:
    async with scripted(_serving(NUMBER, {})) as (channel, peer), open_client(channel) as client:
        await _listed(client)
        await peer.notify("notifications/tools/list_changed")
        assert (await client.call_tool("t")).schema_error is None
        await _listed(client)
        assert (await client.call_tool("t")).schema_error is not None


def test_client_keeps_a_limited_amount_of_output_schemas() -> None:
    schemas = OutputSchemas()
    schema = {"type": "object", "description": "x" * 40_000}
    schemas.add_page({"tools": [{"name": str(number), "outputSchema": schema} for number in range(1000)]})
    assert 100 < len(schemas.known) < 210
    schemas.changed(Change("tools"))
    for kind in ("integer", "string"):
        schemas.add_page({"tools": [{"name": "t", "outputSchema": {"type": kind}}, None, {"name": 5}]})
        assert f'"{kind}"' in (schemas.checked("t", CallToolResult([], {})).schema_error or "")
