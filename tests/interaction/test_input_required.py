"""MR-01 to MR-11: handlers that return input-required results, legacy and modern."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from trio_mcp import InputRequired, Limits, RequestContext, Server, open_memory
from trio_mcp.types import (
    CreateMessageParams,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    InputRequest,
    SamplingMessage,
    TextContent,
)

from .conversation import ANSWERS
from .memory_peer import LATEST_LEGACY, MODERN, connected
from .rounds import ALL, NAME, ask, asked, methods, text

FORM = ElicitFormParams("name?", NAME)


@attrs.define
class Cart:
    """What a handler remembers in its state."""

    item: str = "nothing"


@attrs.define
class Bill:
    """What the handler never remembered."""

    price: int


def asking(result: InputRequired, seen: list[Any]) -> Server:
    """A server whose tool asks ``result`` in the first round; what it then finds goes to ``seen``."""
    server = Server("s")

    @server.tool
    async def order(ctx: RequestContext) -> Any:
        if not ctx.is_resubmit and not ctx.request_state:
            assert (ctx.input_responses, ctx.has_input_response("name")) == ({}, False)
            return result
        seen.append((dict(ctx.input_responses), ctx.request_state))
        return ctx.input_response_as(ElicitResult, "name").action if ctx.has_input_response("name") else "unnamed"

    return server


async def test_mr_02_03_04_08_09_client_retries_a_call_with_answers_after_an_input_required_result(
    autojump_clock: MockClock,
) -> None:
    seen: list[Any] = []
    async with connected(asking(InputRequired({"name": FORM}, '{"item": "tea"}'), seen), MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        assert result["inputRequests"].keys() == {"name"}
        assert "tea" not in result["requestState"]
        assert text(await peer.retry(first, result)) == "accept"
    assert seen == [({"name": ANSWERS["elicitation/create"]}, '{"item": "tea"}')]


async def test_input_required_can_contain_all_kinds_of_input_requests(autojump_clock: MockClock) -> None:
    questions = {
        "name": FORM,
        "pay": ElicitURLParams("pay", "https://example.org/"),
        "say": CreateMessageParams([SamplingMessage("user", TextContent("hi"))], 5),
        "where": InputRequest("roots/list"),
    }
    async with connected(asking(InputRequired(questions), []), MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        assert methods(result) == ["elicitation/create"] * 2 + ["roots/list", "sampling/createMessage"]
        assert result["inputRequests"]["pay"]["params"] == {
            "mode": "url",
            "message": "pay",
            "url": "https://example.org/",
        }
        assert "requestState" not in result
        assert text(await peer.retry(first, result)) == "accept"


async def test_client_retries_a_call_after_input_required_with_only_a_request_state(autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    async with connected(asking(InputRequired(state="later"), seen), MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        assert "inputRequests" not in result
        assert text(await peer.retry(first, result)) == "unnamed"
    assert seen == [({}, "later")]


async def test_mr_05_tampered_request_state_is_refused(autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    async with connected(asking(InputRequired({"name": FORM}, "price: 5"), seen), MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        reply = await peer.retry(first, {**result, "requestState": "price: 1"})
        assert reply["error"]["code"] == -32602
        assert "invalid requestState: not issued to this caller" in reply["error"]["message"]
    assert seen == []


async def test_retry_with_an_expired_request_state_gets_the_input_requests_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    async with connected(asking(InputRequired({"name": FORM}, "s"), seen), MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        monkeypatch.setattr("time.time", lambda: 10.0**10)
        assert asked(await peer.retry(first, result))["inputRequests"] == result["inputRequests"]
    assert seen == []


async def test_mr_06_07_handler_reads_request_state_and_input_responses_as_objects(autojump_clock: MockClock) -> None:
    server, seen = Server("s"), list[Any]()

    @server.tool
    async def order(ctx: RequestContext) -> Any:
        cart = ctx.request_state_as(Cart)
        seen.append(cart)
        if cart.item == "nothing":
            return InputRequired({"name": FORM}, '{"item": "tea"}')
        if not ctx.has_input_response("name"):
            with pytest.raises(ValueError, match="missing 'action'"):
                ctx.input_response_as(ElicitResult, "name")
            assert ctx.input_response_as(dict, "name") == {}
            return InputRequired({"name": FORM}, '{"item": "cake"}')
        with pytest.raises(ValueError, match="missing required field `price`"):
            ctx.request_state_as(Bill)
        return ctx.input_response_as(ElicitResult, "name").content["name"]  # type: ignore[index]

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        result = asked(await peer.retry(first, result, {}))
        assert text(await peer.retry(first, result)) == "Ada"
    assert [cart.item for cart in seen] == ["nothing", "tea", "cake"]


async def test_mr_10_server_omits_input_requests_that_the_client_capabilities_do_not_allow(
    autojump_clock: MockClock,
) -> None:
    questions = InputRequired({"name": FORM, "where": InputRequest("roots/list")})
    async with connected(asking(questions, []), MODERN, {"roots": {}}) as peer:
        _, result = await ask(peer, "order")
        assert result["inputRequests"].keys() == {"where"}
    for returned in (questions, attrs.evolve(questions, state="s")):
        async with connected(asking(returned, []), MODERN, {}) as peer:
            error = await peer.error("order")
            assert error["code"] == -32021
            assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}, "roots": {}}}


async def test_mr_11_input_requests_are_sent_to_a_legacy_client_as_requests_of_the_server(
    autojump_clock: MockClock,
) -> None:
    seen: list[Any] = []
    questions = InputRequired({"name": FORM, "where": InputRequest("roots/list")}, "s")
    async with connected(asking(questions, seen), LATEST_LEGACY, {"elicitation": {}}) as peer:
        call = await peer.start("order")
        await peer.answer(await peer.question("elicitation/create"), ANSWERS["elicitation/create"])
        assert (await peer.reply(call))["result"]["content"][0]["text"] == "accept"
        assert not [m for m in peer.messages if m.get("method") == "roots/list"], "it was not declared"
    assert seen == [({"name": ANSWERS["elicitation/create"]}, "s")]


@pytest.mark.parametrize("returned", [InputRequired({"name": FORM}), InputRequired(state="on and on")])
async def test_mr_11_handler_that_always_returns_input_required_fails_after_max_rounds(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, returned: InputRequired
) -> None:
    server = Server("s", limits=Limits(max_rounds=3))
    runs = 0

    @server.tool
    async def order() -> Any:
        nonlocal runs
        runs += 1
        return returned if runs < 1000 else "at last"

    async with connected(server, LATEST_LEGACY, ALL) as peer:
        call = await peer.start("order")
        for _ in range(3 if returned.requests else 0):
            await peer.answer(await peer.question("elicitation/create"), ANSWERS["elicitation/create"])
        failed = (await peer.reply(call))["result"]
    assert (failed["isError"], failed["content"][0]["text"]) == (True, "internal error in tool order")
    assert "more than 3 times" in caplog.text
    assert runs == 4


async def test_mr_11_input_required_fails_for_legacy_client_of_stateless_server(autojump_clock: MockClock) -> None:
    async with connected(asking(InputRequired({"name": FORM}), []), LATEST_LEGACY, ALL, stateless=True) as peer:
        assert (await peer.error("order"))["code"] == -32603


async def test_call_fails_and_cancels_its_open_input_requests_if_a_legacy_client_refuses_one_of_them(
    autojump_clock: MockClock,
) -> None:
    questions = InputRequired({"name": FORM, "where": InputRequest("roots/list")})
    async with connected(asking(questions, []), LATEST_LEGACY, ALL) as peer:
        call = await peer.start("order")
        await peer.refuse(await peer.question("elicitation/create"), -1, "no")
        assert (await peer.reply(call))["result"]["isError"] is True
        where = await peer.question("roots/list")
        assert (await peer.notification("notifications/cancelled"))["requestId"] == where["id"]


async def test_prompts_and_resources_can_return_input_required(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.prompt
    async def hello(ctx: RequestContext) -> Any:
        return "hello Ada" if ctx.is_resubmit else InputRequired({"name": FORM})

    @server.resource("mem:///here")
    async def here(ctx: RequestContext) -> Any:
        return "here Ada" if ctx.is_resubmit else InputRequired({"name": FORM})

    for revision in (MODERN, LATEST_LEGACY):
        async with connected(server, revision, ALL) as peer:
            for method, params in (("prompts/get", {"name": "hello"}), ("resources/read", {"uri": "mem:///here"})):
                first = peer.message(method, params)
                await peer.send(first)
                if revision == MODERN:
                    reply = await peer.retry(first, asked(await peer.reply(first["id"])))
                else:
                    await peer.answer(await peer.question("elicitation/create"), ANSWERS["elicitation/create"])
                    reply = await peer.reply(first["id"])
                assert "Ada" in str(reply["result"])


async def test_tool_with_replay_that_returns_input_required_keeps_the_answers_of_earlier_rounds(
    autojump_clock: MockClock,
) -> None:
    server, runs = Server("s"), list[int]()

    @server.tool(replay=True)
    async def both(ctx: RequestContext) -> Any:
        runs.append(1)
        roots = await ctx.list_roots()
        if not ctx.has_input_response("name"):
            return InputRequired({"name": FORM})
        return f"{ctx.input_responses['name']['content']['name']} at {roots[0].uri}"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "both")
        result = asked(await peer.retry(first, result))
        assert text(await peer.retry(first, result)) == "Ada at file:///a"
    assert len(runs) == 3


@pytest.mark.parametrize("revision", [MODERN, LATEST_LEGACY])
async def test_input_required_that_is_not_json_fails_only_its_call(autojump_clock: MockClock, revision: str) -> None:
    server = asking(InputRequired({"name": InputRequest("elicitation/create", {"message": object()})}), [])
    async with connected(server, revision, ALL) as peer:
        assert (await peer.call("order"))["isError"] is True
        assert "result" in await peer.request("tools/list")


async def test_output_schema_omits_input_required_in_the_return_annotation(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def count(ctx: RequestContext) -> int | InputRequired:
        return 5 if ctx.is_resubmit else InputRequired({"name": FORM})

    @server.tool
    async def never() -> InputRequired:
        return InputRequired({"name": FORM})

    assert server._tools.registry.get("never").listed.output_schema is None  # type: ignore[union-attr]
    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "count")
        assert (await peer.retry(first, result))["result"]["structuredContent"] == {"result": 5}


@pytest.mark.parametrize("revision", [MODERN, LATEST_LEGACY])
async def test_handler_that_requests_roots_in_a_retry_still_has_the_request_state_of_the_retry(
    autojump_clock: MockClock, revision: str
) -> None:
    server, states = Server("s"), list[tuple[str, list[str]]]()

    @server.tool
    async def both(ctx: RequestContext) -> InputRequired | str:
        await ctx.list_roots()
        states.append((ctx.request_state, sorted(ctx.input_responses)))
        return "done" if ctx.request_state else InputRequired({"name": FORM}, state="asked")

    async def answer(_: Any) -> dict[str, Any]:
        return {"name": "Ada"}

    era: Any = "modern" if revision == MODERN else "legacy"
    async with open_memory(server, era=era, roots=[], elicitation=answer) as client:
        assert (await client.call_tool("both")).text == "done"
    assert states == [("", []), ("asked", ["name"])]
