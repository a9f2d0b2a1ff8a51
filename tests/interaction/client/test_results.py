"""Results of calls: valid ones, errors, and malformed ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, methods_in, scripted, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import ConnectionLost, Limits, PeerError, ProtocolViolation
from trio_mcp.client.opening import open_client
from trio_mcp.types import CallToolResult

TOOL = {"inputSchema": {"type": "object"}}
TEXT = {"content": [{"type": "text", "text": "done"}]}


def _answering(*results: Any, modern: bool = False) -> Any:
    """A script that answers each call with the next of these results."""

    async def script(peer: RawPeer) -> None:
        await (peer.discovered() if modern else peer.handshake())
        for result in results:
            await peer.result(await peer.read(), result)

    return script


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        "text",
        5,
    ],
)
async def test_malformed_tool_result_raises_protocol_violation_only_in_the_call_that_got_it(
    autojump_clock: object, result: Any
) -> None:
    async with scripted(_answering(result, TEXT)) as (channel, _), open_client(channel) as client:
        with pytest.raises(ProtocolViolation, match="tools/call"):
            await client.call_tool("any")
        assert text_of(await client.call_tool("any")) == "done"


async def test_client_ignores_unknown_fields_of_a_result(autojump_clock: object) -> None:
    result = {**TEXT, "future": {"x": 1}, "content": [{"type": "text", "text": "done", "future": 1}]}
    async with scripted(_answering(result)) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"


async def test_client_accepts_modern_result_without_result_type_as_complete(autojump_clock: object) -> None:
    async with scripted(_answering(TEXT, modern=True)) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"


@pytest.mark.parametrize("kind", ["hologram", "", None, 5, [], {}, "x" * 10_000])
async def test_result_with_an_unknown_result_type_raises_protocol_violation_only_in_its_call(
    autojump_clock: object, kind: Any
) -> None:
    results = ({**TEXT, "resultType": kind}, {**TEXT, "resultType": "complete"})
    async with scripted(_answering(*results, modern=True)) as (channel, _), open_client(channel) as client:
        with pytest.raises(ProtocolViolation, match="result type") as caught:
            await client.call_tool("any")
        assert len(str(caught.value)) < 300
        assert text_of(await client.call_tool("any")) == "done"


async def test_client_accepts_legacy_result_that_contains_result_type(autojump_clock: object) -> None:
    async with scripted(_answering({**TEXT, "resultType": "mine"})) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"


async def test_peer_error_keeps_code_message_and_data(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.error(await peer.read(), -32602, "Unknown tool: x", data={"tool": "x"})
        await peer.error(await peer.read(), 7, "")

    async with scripted(script) as (channel, _), open_client(channel) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("x")
        assert (caught.value.code, caught.value.message, caught.value.data) == (
            -32602,
            "Unknown tool: x",
            {"tool": "x"},
        )
        with pytest.raises(PeerError) as caught:
            await client.call_tool("x")
        assert (caught.value.code, caught.value.message, caught.value.data) == (7, "", None)


async def test_call_of_a_failing_tool_returns_a_result_whose_is_error_is_true(autojump_clock: object) -> None:
    async with scripted(_answering({**TEXT, "isError": True})) as (channel, _), open_client(channel) as client:
        assert (await client.call_tool("any")).is_error


async def test_responses_in_any_order_are_matched_to_their_calls(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        calls = [await peer.until("tools/call") for _ in range(10)]
        for call in reversed(calls):
            await peer.text(call, call["params"]["name"])

    async with scripted(script) as (channel, _), open_client(channel) as client:

        async def call(number: int) -> None:
            assert text_of(await client.call_tool(str(number))) == str(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(call, number)


def _wrong_replies(call_id: int) -> list[str]:
    """Replies that settle nobody, for a call of this id."""
    lines = [
        '{"jsonrpc":"2.0","id":999,"result":{}}',
        '{"jsonrpc":"2.0","id":"x","result":{}}',
        '{"result":{}}',
        '{"jsonrpc":"2.0","id":999}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        '{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}',
        '{"jsonrpc":"2.0","id":999,"error":{"code":1,"message":"m"}}',
        '[{"jsonrpc":"2.0","id":999,"result":{}}]',
        "{bad",
        "42",
        '"text"',
        "",
        "null",
    ]
    return [line.replace("ID", str(call_id)) for line in lines]


async def test_s2c_04_client_ignores_replies_with_unknown_ids_and_uses_the_matching_reply(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        for line in _wrong_replies(call["id"]):
            await peer.write(line)
        await trio.sleep(1)
        settled_before.append(bool(results))
        await peer.text(call, "true")
        await peer.text(call, "second")
        await peer.error(call, 1)
        await peer.text(await peer.until("tools/call"), "next")

    results: list[str] = []
    settled_before: list[bool] = []
    async with scripted(script) as (channel, peer), open_client(channel) as client:
        results.append(text_of(await client.call_tool("any")))
        results.append(text_of(await client.call_tool("any")))
    assert settled_before == [False]
    assert results == ["true", "next"]
    assert not [message for message in peer.wire if "error" in message], "nothing of that is ever answered"


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ('"result":{"content":[]},"error":{"code":1,"message":"m"}', "a reply with both a result and an error"),
        ('"error":""', "a reply whose error is empty"),
        ('"error":null', "a reply whose error is empty"),
        ('"error":{}', "a reply whose error is empty"),
        ('"result":{"content":[]},"jsonrpc":"1.0"', 'a reply whose member "jsonrpc" is not "2.0"'),
    ],
    ids=["both", "text", "null", "empty", "version"],
)
async def test_s2c_04_malformed_reply_fails_only_the_call_with_its_id(
    autojump_clock: object, reply: str, why: str, modern: bool
) -> None:
    async def script(peer: RawPeer) -> None:
        await (peer.discovered() if modern else peer.handshake())
        first = await peer.until("tools/call")
        await peer.write(f'{{"jsonrpc":"2.0","id":{first["id"]},{reply}}}')
        await peer.text(first, "late")
        await peer.text(await peer.until("tools/call"), "next")

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        with (
            trio.fail_after(60),
            pytest.raises(ProtocolViolation, match=f"tools/call: the answer cannot be read: {why}"),
        ):
            await client.call_tool("first")
        assert text_of(await client.call_tool("second")) == "next"
    assert "notifications/cancelled" not in methods_in(peer.wire), "the server has answered"
    assert [message for message in peer.wire if "error" in message] == []


@pytest.mark.parametrize("modern", [False, True])
async def test_client_ignores_a_null_error_beside_a_result_and_a_null_result_beside_an_error(
    autojump_clock: object, modern: bool
) -> None:
    async def script(peer: RawPeer) -> None:
        await (peer.discovered() if modern else peer.handshake())
        first = await peer.until("tools/call")
        await peer.send({"id": first["id"], "result": {"content": [{"type": "text", "text": "done"}]}, "error": None})
        second = await peer.until("tools/call")
        await peer.send({"id": second["id"], "result": None, "error": {"code": -7, "message": "no"}})

    async with scripted(script) as (channel, _), open_client(channel) as client:
        with trio.fail_after(60):
            assert text_of(await client.call_tool("first")) == "done"
            with pytest.raises(PeerError, match=r"no \(-7\)"):
                await client.call_tool("second")


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        '{"jsonrpc":"2.0","id":ID,"result":{"n":1e400}}',
        '{"jsonrpc":"2.0","id":ID,"result":{"n":NaN}}',
        '{"result":{"content":[{"type":"text","text":"cut \\ud83d"}]},"jsonrpc":"2.0","id":ID}',
        '{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"\\udc00"}}',
        '{"jsonrpc":"2.0","id":ID,"result":' + "[" * 5000 + "]" * 5000 + "}",
        '{"jsonrpc":"2.0","id":ID,"result":{"content":',
    ],
    ids=["number", "nan", "surrogate", "error", "deep", "truncated"],
)
async def test_reply_that_is_not_json_fails_only_its_call(autojump_clock: object, reply: str, modern: bool) -> None:
    why = "the message has more than 256 levels of nesting" if "[[" in reply else "not JSON"

    async def script(peer: RawPeer) -> None:
        await (peer.discovered() if modern else peer.handshake())
        first, second = await peer.until("tools/call"), await peer.until("tools/call")
        await peer.write(reply.replace("ID", str(first["id"])))
        await peer.text(second)
        await peer.text(first, "late")
        await peer.text(await peer.until("tools/call"), "next")

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                with pytest.raises(ProtocolViolation, match=f"tools/call: the answer cannot be read: {why}"):
                    await client.call_tool("first")

            nursery.start_soon(fail)
            await wait_all_tasks_blocked()
            assert text_of(await client.call_tool("second")) == "done"
        assert text_of(await client.call_tool("third")) == "next"
    assert "notifications/cancelled" not in methods_in(peer.wire), "the server has answered"
    assert [message for message in peer.wire if "error" in message] == []


async def test_batch_of_replies_is_accepted_in_revision_2025_03_26(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake("2025-03-26")
        calls = [await peer.until("tools/call") for _ in range(2)]
        contents = [[{"type": "text", "text": call["params"]["name"]}] for call in calls]
        await peer.write(
            json.dumps(
                [
                    {"jsonrpc": "2.0", "id": call["id"], "result": {"content": content}}
                    for call, content in zip(calls, contents, strict=True)
                ]
            )
        )

    async with scripted(script) as (channel, _), open_client(channel) as client:

        async def call(name: str) -> None:
            assert text_of(await client.call_tool(name)) == name

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "one")
            nursery.start_soon(call, "two")


# Pages


async def test_list_tools_follows_cursors_through_all_pages(autojump_clock: object) -> None:
    pages = (
        {"tools": [{"name": "a", **TOOL}, {"name": "b", **TOOL}], "nextCursor": "2"},
        {"tools": [], "nextCursor": ""},
        {"tools": [{"name": "c", **TOOL}]},
    )
    async with scripted(_answering(*pages)) as (channel, peer), open_client(channel) as client:
        assert [tool.name async for tool in client.list_tools()] == ["a", "b", "c"]
    cursors = [(m.get("params") or {}).get("cursor") for m in peer.wire if m.get("method") == "tools/list"]
    assert cursors == [None, "2", ""]


def _page(names: str, cursor: Any = None) -> dict[str, Any]:
    return {"tools": [{"name": name, **TOOL} for name in names], "nextCursor": cursor}


@pytest.mark.parametrize(
    ("pages", "found", "problem"),
    [
        ([_page("ab", "x"), _page("ab", "x")], "ab", "repeats a cursor"),
        ([_page("a", "1"), _page("b", "2"), _page("c", "1")], "abc", "repeats a cursor"),
        ([_page("ab", ""), _page("ab", "")], "ab", "repeats a cursor"),
        ([_page("a", "1"), _page("b", "2"), _page("ab", "3")], "ab", "nothing new"),
        ([_page("", str(number)) for number in range(200)], "", "nothing new"),
        ([_page("a"[number:], str(number)) for number in range(200)], "a", "nothing new"),
        ([_page("ab", 2)], "ab", "$.nextCursor"),
        ([_page("ab", 0)], "ab", "$.nextCursor"),
        ([_page("ab", False)], "ab", "$.nextCursor"),
        ([_page("ab", [])], "ab", "$.nextCursor"),
        ([_page("a", "1"), _page("b", {"page": 2})], "ab", "$.nextCursor"),
        ([_page(name, name) for name in "abcd"], "abc", "more than 3 pages"),
    ],
)
async def test_client_stops_an_endless_listing_with_one_warning_and_returns_no_duplicates(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, pages: list[Any], found: str, problem: str
) -> None:
    options: Any = {"max_pages": 3} if problem.startswith("more") else {}
    async with scripted(_answering(*pages)) as (channel, peer), open_client(channel, **options) as client:
        assert "".join([tool.name async for tool in client.list_tools()]) == found
        assert len([record for record in caplog.records if problem in record.message]) == 1
    assert methods_in(peer.wire).count("tools/list") <= 101
    caplog.clear()


async def test_listing_stops_with_a_warning_if_the_server_rejects_the_empty_cursor_that_it_sent(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.result(await peer.until("tools/list"), _page("ab", ""))
        await peer.error(await peer.until("tools/list"), -32602, "no such cursor")

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert [tool.name async for tool in client.list_tools()] == ["a", "b"]
    assert "refuses its own empty cursor" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("listing", ["resources", "resource_templates", "prompts"])
async def test_each_list_method_stops_if_server_repeats_a_cursor(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, listing: str
) -> None:
    member = "resourceTemplates" if listing == "resource_templates" else listing
    page = {member: [{"name": "a", "uri": "a:b", "uriTemplate": "a:{b}"}], "nextCursor": "again"}
    async with scripted(_answering(page, page)) as (channel, _), open_client(channel) as client:
        assert len([item async for item in getattr(client, f"list_{listing}")()]) == 1
    assert "repeats a cursor" in caplog.text
    caplog.clear()


async def test_async_for_loop_over_list_tools_that_ends_early_requests_no_further_pages(autojump_clock: object) -> None:
    pages = ({"tools": [{"name": "a", **TOOL}], "nextCursor": "1"}, {"tools": []})
    async with scripted(_answering(*pages)) as (channel, peer), open_client(channel) as client:
        async for tool in client.list_tools():
            assert tool.name == "a"
            break
    assert methods_in(peer.wire).count("tools/list") == 1


@pytest.mark.parametrize("listing", ["tools", "resources", "resource_templates", "prompts"])
async def test_each_list_method_accepts_an_empty_list(autojump_clock: object, listing: str) -> None:
    member = "resourceTemplates" if listing == "resource_templates" else listing
    async with scripted(_answering({member: []})) as (channel, _), open_client(channel) as client:
        assert [item async for item in getattr(client, f"list_{listing}")()] == []


# Loss


async def test_pending_and_later_calls_raise_connection_lost_if_the_connection_is_lost(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for _ in range(3):
            await peer.until("tools/call")
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel) as client:
        failures: list[Exception] = []

        async def call() -> None:
            try:
                await client.call_tool("any")
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
        assert [type(error) for error in failures] == [ConnectionLost] * 3
        assert len({id(error) for error in failures}) == 3
        await trio.sleep(10)  # nobody cancels this task
        with pytest.raises(ConnectionLost):
            await client.call_tool("any")


async def test_trio_task_without_a_pending_call_continues_after_the_connection_is_lost(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel):
        await trio.sleep(100)


async def test_exception_inside_the_client_context_manager_propagates_unchanged(autojump_clock: object) -> None:
    async with scripted(RawPeer.handshake) as (channel, _):
        with pytest.raises(LookupError, match="mine"):
            async with open_client(channel):
                raise LookupError("mine")


async def test_call_returns_response_sent_just_before_the_server_closes_its_output(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.text(await peer.until("tools/call"), "last words")
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "last words"


async def test_request_method_of_a_client_can_send_any_mcp_method_and_returns_plain_data(
    autojump_clock: object,
) -> None:
    async with scripted(_answering({"anything": [1]})) as (channel, peer), open_client(channel) as client:
        assert await client.request("tools/list", {"cursor": "c"}, dict, meta={"k": "v"}) == {"anything": [1]}
    assert peer.wire[-1]["params"] == {"cursor": "c", "_meta": {"k": "v"}}


async def test_client_returns_structured_content_exactly_as_the_server_sent_it(autojump_clock: object) -> None:
    value = {"camelCase": {"snake_case": [1, 2.5, None, "é\u2028"]}}
    async with (
        scripted(_answering({**TEXT, "structuredContent": value})) as (channel, _),
        open_client(channel) as client,
    ):
        result = await client.call_tool("any")
        assert isinstance(result, CallToolResult)
        assert result.structured_content == value


@pytest.mark.parametrize("when", ["while it waits for room", "before"])
async def test_call_on_a_lost_connection_fails_immediately_even_if_the_send_queue_is_full(
    autojump_clock: object, when: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await trio.sleep(5)
        await peer.close()

    async def call(text: str) -> None:
        with pytest.raises(ConnectionLost):
            await client.call_tool("any", {"text": text})

    limits = Limits(high_water=100)
    async with (
        scripted(script) as (channel, _),
        open_client(channel, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(4):
            nursery.start_soon(call, "x" * 70_000)
            await wait_all_tasks_blocked()
        if when == "before":
            await trio.sleep(10)
        await call("")
