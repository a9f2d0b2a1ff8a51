"""MR: a handler requests input from a modern client, and continues after the retry."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import (
    BadAnswer,
    CapabilityMissing,
    Limits,
    NotSerializable,
    RequestContext,
    Server,
    ToolError,
    WorkerContext,
)

from .conversation import ANSWERS, META_PREFIX
from .memory_peer import MODERN, connected
from .rounds import ALL, NAME, ask, asked, methods, text

TWO: dict[str, Any] = {"sampling": {}, "roots": {}}


async def test_handler_that_elicits_and_samples_continues_after_each_retry_and_does_not_start_again(
    autojump_clock: MockClock,
) -> None:
    server, journal = Server("s"), list[str]()

    @server.tool
    async def greet(ctx: RequestContext) -> str:
        journal.append("before")
        answer = await ctx.elicit("name?", NAME)
        journal.append("between")
        said = await ctx.sample("greet", max_tokens=5)
        journal.append("after")
        return f"{said.content.text}, {answer.content['name']}"  # type: ignore[union-attr,index]

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "greet")
        assert methods(result) == ["elicitation/create"]
        assert journal == ["before"]
        result = asked(await peer.retry(first, result))
        assert methods(result) == ["sampling/createMessage"]
        assert text(await peer.retry(first, result)) == "hi, Ada"
    assert journal == ["before", "between", "after"]


async def test_concurrent_input_requests_are_sent_together_with_separate_keys(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def both(ctx: RequestContext) -> str:
        found: list[str] = []

        async def name(label: str) -> None:
            answer = await ctx.elicit(label, NAME)
            found.append(f"{label} {answer.content['name']}")  # type: ignore[index]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(name, "first")
            nursery.start_soon(name, "second")
            nursery.start_soon(name, "second")
            await ctx.list_roots()
        return ", ".join(sorted(found))

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "both")
        assert methods(result) == ["elicitation/create"] * 3 + ["roots/list"]
        assert text(await peer.retry(first, result)) == "first Ada, second Ada, second Ada"


async def test_roots_request_made_by_a_handler_that_awaits_input_is_sent_after_the_retry(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def late(ctx: RequestContext) -> str:
        async def roots() -> None:
            await trio.sleep(5)
            await ctx.list_roots()

        ctx.nursery.start_soon(roots)
        await ctx.sample("first", max_tokens=1)
        return "done"

    async with connected(server, MODERN, TWO) as peer:
        first, result = await ask(peer, "late")
        assert methods(result) == ["sampling/createMessage"]
        assert await peer.everything(60) == [], "nothing is sent while it is parked"
        result = asked(await peer.retry(first, result))
        assert methods(result) == ["roots/list"]
        assert text(await peer.retry(first, result)) == "done"


@pytest.mark.parametrize("fails", [False, True])
async def test_retry_returns_a_result_that_the_handler_produced_before_the_retry_arrived(
    autojump_clock: MockClock, fails: bool
) -> None:
    server, ended = Server("s"), trio.Event()

    @server.tool
    async def impatient(ctx: RequestContext) -> str:
        with trio.move_on_after(3):
            await ctx.list_roots()
        ended.set()
        if fails:
            raise ToolError("no patience")
        return "went on without"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "impatient")
        await ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        reply = await peer.retry(first, result)
        assert reply["result"]["content"][0]["text"] == ("no patience" if fails else "went on without")


async def test_retry_of_a_handler_that_failed_before_the_retry_returns_an_internal_error_without_text(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def broken(ctx: RequestContext) -> None:
        with trio.move_on_after(3):
            await ctx.list_roots()
        raise RuntimeError("secret")

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "broken")
        await trio.sleep(10)
        reply = await peer.retry(first, result)
        assert reply["result"]["isError"] is True
        assert reply["result"]["content"] == [{"type": "text", "text": "internal error in tool broken"}]


async def test_retry_repeats_unanswered_input_requests_and_ignores_unknown_answers(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def both(ctx: RequestContext) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.list_roots)
            said = await ctx.sample("x", max_tokens=1)
        return said.model

    async with connected(server, MODERN, TWO) as peer:
        first, result = await ask(peer, "both")
        roots = next(key for key, one in result["inputRequests"].items() if one["method"] == "roots/list")
        sampling = next(key for key in result["inputRequests"] if key != roots)
        again = asked(await peer.retry(first, result, {roots: ANSWERS["roots/list"], "stranger": {}}))
        assert again["inputRequests"] == {sampling: result["inputRequests"][sampling]}
        assert again["requestState"] != result["requestState"]
        nothing = asked(await peer.retry(first, again, {}))
        assert nothing["inputRequests"] == again["inputRequests"]
        assert text(await peer.retry(first, nothing)) == "m"


async def test_handler_continues_with_request_id_progress_token_log_level_and_meta_of_the_retry(
    autojump_clock: MockClock,
) -> None:
    server, ids = Server("s"), list[Any]()

    @server.tool
    async def tell(ctx: RequestContext) -> str:
        async def one(step: int) -> None:
            ids.append((ctx.request_id, ctx.meta.get("traceparent")))
            ctx.progress(step)
            await ctx.log.info(step)

        await one(1)
        await ctx.list_roots()
        await one(2)
        return "told"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "tell", token="one", log_level="warning", id=7)
        assert (peer.progress_of("one"), peer.logged()) == ([{"progressToken": "one", "progress": 1}], [])
        meta = {"progressToken": 2, META_PREFIX + "logLevel": "info", "traceparent": "00-1"}
        message = peer.retry_message(first, result, meta=meta, id="8")
        await peer.send(message)
        assert text(await peer.reply("8")) == "told"
        assert peer.progress_of(2) == [{"progressToken": 2, "progress": 2}]
        assert len(peer.progress_of("one")) == 1
        assert peer.logged() == [("info", 2)]
    assert ids == [(7, None), ("8", "00-1")]


async def test_server_sends_no_progress_or_logs_while_a_handler_awaits_input(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def busy(ctx: RequestContext) -> str:
        async def tell() -> None:
            for step in range(10):
                await trio.sleep(1)
                assert ctx.progress(step) is False
                await ctx.log.emergency(step)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await ctx.list_roots()
        return "done"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "busy", token=1, log_level="debug")
        assert await peer.everything(60) == []
        assert text(await peer.retry(first, result)) == "done"


async def test_latest_progress_is_sent_before_the_input_requests(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> None:
        for step in range(5):
            ctx.progress(step)
        await ctx.list_roots()

    async with connected(server, MODERN, ALL) as peer:
        await ask(peer, "work", token="t")
        assert [message.get("method") for message in peer.messages] == ["notifications/progress"] * 2 + [None]
        assert peer.progress_of("t")[-1]["progress"] == 4


@pytest.mark.parametrize("content", [{"name": 5}, {}])
async def test_retry_with_an_invalid_elicitation_answer_gets_error_invalid_params(
    autojump_clock: MockClock, content: Any
) -> None:
    server = Server("s")

    @server.tool
    async def greet(ctx: RequestContext) -> None:
        await ctx.elicit("name?", NAME)

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "greet")
        (key,) = result["inputRequests"]
        reply = await peer.retry(first, result, {key: {"action": "accept", "content": content}})
        assert reply["error"]["code"] == -32602
        assert "does not fit" in reply["error"]["message"]


async def test_malformed_elicitation_result_raises_bad_answer_in_the_handler(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def greet(ctx: RequestContext) -> str:
        with pytest.raises(BadAnswer):
            await ctx.elicit("name?", NAME)
        return "nobody"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "greet")
        (key,) = result["inputRequests"]
        assert text(await peer.retry(first, result, {key: {"action": "perhaps"}})) == "nobody"


@pytest.mark.parametrize("responses", [5, [], "x", {"key": 5}, {"key": None}])
async def test_retry_with_malformed_input_responses_is_refused_and_the_request_state_stays_valid(
    autojump_clock: MockClock, responses: Any
) -> None:
    server = Server("s")

    @server.tool
    async def where(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "where")
        message = peer.retry_message(first, result)
        message["params"]["inputResponses"] = responses
        await peer.send(message)
        assert (await peer.reply(message["id"]))["error"]["code"] == -32602
        assert text(await peer.retry(first, result)) == "file:///a"


async def test_mr_10_client_capabilities_of_the_retry_apply_to_further_input_requests(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def where(ctx: RequestContext) -> str:
        await ctx.sample("x", max_tokens=1)
        await ctx.list_roots()
        return "found"

    async with connected(server, MODERN, TWO) as peer:
        first, result = await ask(peer, "where")
        peer.capabilities = {"sampling": {}}
        error = (await peer.retry(first, result))["error"]
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"roots": {}}})


async def test_input_request_made_before_the_retry_is_checked_against_the_capabilities_of_the_retry(
    autojump_clock: MockClock,
) -> None:
    server, failures = Server("s"), list[str]()

    @server.tool
    async def late(ctx: RequestContext) -> str:
        async def roots() -> None:
            await trio.sleep(5)
            try:
                await ctx.list_roots()
            except CapabilityMissing as error:
                failures.append(error.capability)

        ctx.nursery.start_soon(roots)
        await ctx.sample("first", max_tokens=1)
        return "done"

    async with connected(server, MODERN, TWO) as peer:
        first, result = await ask(peer, "late")
        await trio.sleep(10)
        peer.capabilities = {"sampling": {}}
        assert text(await peer.retry(first, result)) == "done"
    assert failures == ["roots"]


async def test_elicit_raw_sends_an_input_request_if_the_client_declared_the_capability(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def raw(ctx: RequestContext) -> str:
        with pytest.raises(CapabilityMissing):
            await ctx.elicit_raw({"mode": "url", "url": "https://example.org/", "message": "go"})
        return str((await ctx.elicit_raw({"message": "?", "requestedSchema": NAME}))["extra"])

    async with connected(server, MODERN, {"elicitation": {"form": {}}}) as peer:
        first, result = await ask(peer, "raw")
        (key,) = result["inputRequests"]
        assert result["inputRequests"][key]["params"] == {"message": "?", "requestedSchema": NAME}
        assert text(await peer.retry(first, result, {key: {"action": "accept", "extra": "kept"}})) == "kept"


async def test_sampling_parameters_that_are_not_json_raise_in_the_handler(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def raw(ctx: RequestContext) -> str:
        with pytest.raises(NotSerializable):
            await ctx.sample_raw({"temperature": float("nan")})
        return "noticed"

    async with connected(server, MODERN, ALL) as peer:
        assert await peer.text("raw") == "noticed"


async def test_prompts_and_resources_can_request_input_but_completions_cannot(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.prompt
    async def hello(ctx: RequestContext, x: str = "") -> str:
        return (await ctx.list_roots())[0].uri

    @server.resource("mem:///here")
    async def here(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    @server.completion(prompt="hello", argument="x")
    async def complete(value: str, ctx: RequestContext) -> list[str]:
        await ctx.list_roots()
        return []

    async with connected(server, MODERN, ALL) as peer:
        for method, params in (("prompts/get", {"name": "hello"}), ("resources/read", {"uri": "mem:///here"})):
            first = peer.message(method, params)
            await peer.send(first)
            result = asked(await peer.reply(first["id"]))
            reply = await peer.retry(first, result)
            assert "file:///a" in str(reply["result"])
        params: dict[str, Any] = {
            "ref": {"type": "ref/prompt", "name": "hello"},
            "argument": {"name": "x", "value": ""},
        }
        assert (await peer.request("completion/complete", params))["error"]["code"] == -32603


async def test_sync_handler_can_elicit_and_sample_from_its_thread() -> None:
    server = Server("s")

    @server.tool
    def greet(ctx: WorkerContext) -> str:
        answer = ctx.elicit("name?", NAME)
        said = ctx.sample("greet", max_tokens=5)
        return f"{said.content.text}, {answer.content['name']}"  # type: ignore[union-attr,index]

    with trio.fail_after(PATIENCE):
        async with connected(server, MODERN, ALL) as peer:
            first, result = await ask(peer, "greet")
            result = asked(await peer.retry(first, result))
            assert text(await peer.retry(first, result)) == "hi, Ada"


async def test_tool_timeout_continues_while_the_handler_awaits_roots(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool(timeout=30)
    async def slow(ctx: RequestContext) -> None:
        await ctx.list_roots()

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "slow")
        await trio.sleep(31)
        reply = await peer.retry(first, result)
        assert reply["result"]["isError"] is True
        assert "took longer" in reply["result"]["content"][0]["text"]


async def test_handler_that_awaits_input_does_not_count_towards_the_in_flight_limit(autojump_clock: MockClock) -> None:
    server = Server("s", limits=Limits(max_in_flight=1, max_queued=1))

    @server.tool
    async def where(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    @server.tool
    async def nap(seconds: float) -> str:
        await trio.sleep(seconds)
        return "rested"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "where")
        assert await peer.text("nap", {"seconds": 1}) == "rested"
        # It goes on when it is its turn, and a retry too many can be made again.
        nap = await peer.start("nap", {"seconds": 5})
        second, also = await peer.start("nap", {"seconds": 5}), peer.retry_message(first, result)
        await peer.send(also)
        assert (await peer.reply(also["id"]))["error"]["code"] == -31000
        await peer.reply(nap)
        start = trio.current_time()
        assert text(await peer.retry(first, result)) == "file:///a"
        assert trio.current_time() == start + 5, "it waited for its turn"
        await peer.reply(second)


async def test_modern_handler_cannot_send_a_ping_to_the_client(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def other(ctx: RequestContext) -> None:
        await ctx.send_request("ping", None, dict)

    async with connected(server, MODERN, ALL) as peer:
        assert (await peer.error("other"))["code"] == -32603, "the tool is there: -32601 would be about that"
