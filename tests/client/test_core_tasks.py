"""Tasks of 2025-11-25: the caller asks for them, looks at them, and fetches their results."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.client.scripted_tasks import TaskPeer, core, with_core_tasks
from tests.interaction.client.raw import methods_in, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import PeerError, Progress, ProtocolViolation, TaskCancelled, fail_after_work
from trio_mcp.types import ElicitFormParams

DONE = core("completed")


def one_after_another(*states: Any) -> Any:
    """A look that gives these states, the last for ever."""
    left = iter(states[:-1])
    return lambda: next(left, states[-1])


async def test_tool_that_requires_a_task_is_called_as_a_task(autojump_clock: object) -> None:
    """2025-11-25 tasks, Tool-Level Negotiation: MUST. The TypeScript SDK and mcp refuse a plain call by a result with
    ``isError``, so that nothing tells the refusal from a failure of the tool."""
    async with with_core_tasks(one_after_another(core(), DONE)) as (client, peer):
        assert text_of(await client.call_tool("any", {"x": 1})) == "done"
    assert peer.sent("tools/call") == [{"name": "any", "arguments": {"x": 1}, "task": {}}]
    expected = ["tools/list", "tools/call", "tasks/get", "tasks/get", "tasks/result"]
    assert methods_in(peer.wire)[-5:] == expected


class Listing(TaskPeer):
    """Lists its tool as `support`, and refuses all other calls by -32601. A plain call is answered with `outcome`."""

    async def error(self, request: dict[str, Any], code: int, message: str = "no", **more: Any) -> None:
        if request["method"] != "tools/call" or self.support == "required":
            await super().error(request, code, message, **more)
        elif isinstance(self.outcome, int):
            await super().error(request, self.outcome)
        else:
            await self.result(request, self.outcome)

    async def say(self, message: dict[str, Any], said: Any) -> None:
        if message["method"] == "tools/call" and self.support == "forbidden":
            await super().error(message, -32601)
        else:
            await super().say(message, said)


def calls_of(peer: TaskPeer) -> list[bool]:
    """Whether each call has asked for a task."""
    return ["task" in call for call in peer.sent("tools/call")]


async def test_client_fetches_the_task_support_of_tools_only_once_until_the_tool_list_changes(
    autojump_clock: object,
) -> None:
    async with with_core_tasks(lambda: DONE, kind=Listing) as (client, peer):
        await client.call_tool("any")
        await client.call_tool("any")
        assert (len(peer.sent("tools/list")), calls_of(peer)) == (1, [True, True])
        peer.support = "forbidden"
        await peer.notify("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        await client.call_tool("any")
        assert (len(peer.sent("tools/list")), calls_of(peer)) == (2, [True, True, False])
        await client.call_tool("another, which is not listed")
        assert (len(peer.sent("tools/list")), calls_of(peer)[3:]) == (2, [False])


async def test_concurrent_calls_wait_for_the_listing_that_tells_the_task_support_of_their_tool(
    autojump_clock: object,
) -> None:
    class Slow(Listing):
        async def result(self, request: dict[str, Any], result: Any) -> None:
            if request["method"] == "tools/list":
                await all_begun.wait()
            await super().result(request, result)

    all_begun = trio.Event()
    async with with_core_tasks(lambda: DONE, kind=Slow) as (client, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "any")
            await peer.got("tools/list")
            nursery.start_soon(client.call_tool, "any")
            nursery.start_soon(client.call_tool, "any")
            await wait_all_tasks_blocked()
            all_begun.set()
        assert (len(peer.sent("tools/list")), calls_of(peer)) == (1, [True, True, True])


async def test_call_succeeds_if_the_tools_change_while_the_client_lists_them(autojump_clock: object) -> None:
    class Changing(Listing):
        """Lists its tool on the first of two pages, and changes its tools before the second one, once."""

        async def result(self, request: dict[str, Any], result: Any) -> None:
            if request["method"] == "tools/list":
                lists = self.sent("tools/list")
                if len(lists) == 1:
                    result = {**result, "nextCursor": "2"}
                elif len(lists) == 2:
                    await self.notify("notifications/tools/list_changed")
                    await wait_all_tasks_blocked()
                    result = {"tools": []}
            await super().result(request, result)

    async with with_core_tasks(lambda: DONE, kind=Changing) as (client, peer):
        assert text_of(await client.call_tool("any")) == "done"
        assert calls_of(peer) == [False, True]


async def test_client_reads_task_support_from_a_tool_listing_that_the_application_requested(
    autojump_clock: object,
) -> None:
    async with with_core_tasks(lambda: DONE, kind=Listing) as (client, peer):
        assert [tool.name async for tool in client.list_tools()] == ["any"]
        await client.call_tool("any")
        assert (len(peer.sent("tools/list")), calls_of(peer)) == (1, [True])


@pytest.mark.parametrize("support", ["optional", "forbidden", None, 7])
async def test_client_does_not_repeat_a_tool_call_that_returns_method_not_found(
    autojump_clock: object, support: Any
) -> None:
    class Raising(Listing):
        pass

    Raising.support = support
    async with with_core_tasks(lambda: DONE, outcome=-32601, kind=Raising) as (client, peer):
        for listings in (1, 2):  # the second call asks whether the tool is another one by now
            with pytest.raises(PeerError) as caught:
                await client.call_tool("any")
            assert caught.value.code == -32601
            assert len(peer.sent("tools/list")) == listings
        assert calls_of(peer) == [False, False]


@pytest.mark.parametrize(("before", "after"), [("forbidden", "required"), ("required", "forbidden")])
async def test_client_repeats_a_call_with_or_without_a_task_if_the_tool_changed_its_task_support(
    autojump_clock: object, before: str, after: str
) -> None:
    async with with_core_tasks(lambda: DONE, kind=Listing) as (client, peer):
        peer.support = before
        assert [tool.name async for tool in client.list_tools()] == ["any"]
        peer.support = after
        assert text_of(await client.call_tool("any")) == "done"
        assert calls_of(peer) == [before == "required", after == "required"]


async def test_client_calls_a_tool_without_a_task_if_the_server_cannot_list_tools(autojump_clock: object) -> None:
    class Unlisted(Listing):
        support = "optional"

        async def result(self, request: dict[str, Any], result: Any) -> None:
            if request["method"] == "tools/list":
                await self.error(request, -32603)
            else:
                await super().result(request, result)

    async with with_core_tasks(lambda: DONE, kind=Unlisted) as (client, peer):
        assert text_of(await client.call_tool("any")) == "done"
        assert calls_of(peer) == [False]


async def test_concurrent_calls_list_the_tools_of_the_server_once(autojump_clock: object) -> None:
    async with with_core_tasks(lambda: DONE, kind=Listing) as (client, peer), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client.call_tool, "any")
        with trio.CancelScope() as scope:
            nursery.start_soon(client.call_tool, "any")
            await wait_all_tasks_blocked()
            scope.cancel()
    assert (len(peer.sent("tools/list")), calls_of(peer)) == (1, [True] * 6)


async def test_on_task_callback_gets_the_task_id_before_the_client_polls_the_task(autojump_clock: object) -> None:
    ids = list[str]()
    async with with_core_tasks(lambda: DONE) as (client, peer):

        def told(task_id: str) -> None:
            ids.append(task_id)
            assert not peer.sent("tasks/get")

        await client.call_tool("any", on_task=told)
        assert ids == ["t"]
        with pytest.raises(ZeroDivisionError):
            await client.call_tool("any", on_task=lambda _: 1 // 0)
        await peer.got("tasks/cancel")
    assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


@pytest.mark.parametrize("capabilities", [{}, {"tasks": {"requests": {}}}, {"tasks": {"list": {}, "cancel": {}}}])
async def test_client_requests_no_task_from_a_server_without_tasks(autojump_clock: object, capabilities: Any) -> None:
    # 2025-11-25 tasks, Tool-Level Negotiation 1: MUST NOT.
    async with with_core_tasks(core, capabilities=capabilities) as (client, peer):
        with pytest.raises(PeerError):
            await client.call_tool("any")
        with pytest.raises(PeerError):
            await client.start_task("any")
        assert not any("task" in call for call in peer.sent("tools/call"))


async def test_client_sends_the_requested_task_ttl_in_milliseconds(autojump_clock: object) -> None:
    async with with_core_tasks(core) as (client, peer):
        await client.start_task("any", ttl=1.5)
        await client.start_task("any")
        assert [call["task"] for call in peer.sent("tools/call")] == [{"ttl": 1500}, {}]
        for wrong in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="time to live"):
                await client.start_task("any", ttl=wrong)


async def test_tool_with_forbidden_task_support_is_called_without_a_task(autojump_clock: object) -> None:
    class Plain(Listing):
        support = "forbidden"

    async with with_core_tasks(core, kind=Plain) as (client, peer):
        task = await client.start_task("any")
        assert task.id is None
        assert text_of(await task.result()) == "done"
        assert calls_of(peer) == [False]


async def test_server_can_elicit_while_the_client_waits_for_tasks_result(autojump_clock: object) -> None:
    class Asking(TaskPeer):
        answer: Any = None

        async def say(self, message: dict[str, Any], said: Any) -> None:
            if message["method"] == "tasks/result" and self.answer is None:
                related = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
                schema = {"type": "object", "properties": {"name": {"type": "string"}}}
                await self.request(
                    "q", "elicitation/create", {"message": "who?", "requestedSchema": schema, "_meta": related}
                )
                while (reply := await self.read()).get("id") != "q":
                    await self.result(reply, core("input_required", statusMessage="waiting"))
                self.answer = reply["result"]
            await super().say(message, said)

    seen: list[Progress] = []

    async def think(_: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(10)
        return {"name": "Ann"}

    async with with_core_tasks(lambda: core("input_required"), kind=Asking, elicitation=think) as (client, peer):
        with fail_after_work(5):
            assert text_of(await client.call_tool("any", on_progress=seen.append)) == "done"
        assert isinstance(peer, Asking)
        assert peer.answer["content"] == {"name": "Ann"}
        assert len(peer.sent("tasks/result")) == 1
    assert [each.message for each in seen] == ["waiting"]


async def test_client_requests_no_result_of_a_cancelled_task(autojump_clock: object) -> None:
    async with with_core_tasks(lambda: core("cancelled", statusMessage="by the operator")) as (client, peer):
        with pytest.raises(TaskCancelled, match="by the operator"):
            await client.call_tool("any")
        assert not {"tasks/result", "tasks/cancel"} & set(methods_in(peer.wire))


async def test_waiting_for_a_task_raises_if_it_is_cancelled_while_its_result_is_fetched(autojump_clock: object) -> None:
    look = one_after_another(core("input_required"), core("cancelled"))
    async with with_core_tasks(look, outcome=-32602) as (client, peer):
        with pytest.raises(TaskCancelled):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert not peer.sent("tasks/cancel")


async def test_error_response_to_a_call_that_requests_a_task_is_raised_by_the_call(autojump_clock: object) -> None:
    async with with_core_tasks(lambda: core("failed"), outcome=-31050) as (client, peer):
        with pytest.raises(PeerError) as caught:
            await client.call_tool("any")
        assert caught.value.code == -31050
        await wait_all_tasks_blocked()
        assert not peer.sent("tasks/cancel")


async def test_call_raises_peer_error_for_a_failed_task_with_an_empty_result(autojump_clock: object) -> None:
    """mcp 1.x answers so, and tells the error in the message of the task."""
    nothing = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}
    async with with_core_tasks(lambda: core("failed", statusMessage="broken"), outcome=nothing) as (client, _):
        with pytest.raises(PeerError, match="broken"):
            await client.call_tool("any")


async def test_call_raises_task_cancelled_for_a_cancelled_task_with_an_empty_result(autojump_clock: object) -> None:
    look = one_after_another(core("input_required"), core("cancelled"))
    async with with_core_tasks(look, outcome={}) as (client, _):
        with pytest.raises(TaskCancelled):
            await client.call_tool("any")


async def test_empty_result_of_a_completed_task_is_returned(autojump_clock: object) -> None:
    async with with_core_tasks(lambda: DONE, outcome={}) as (client, _):
        assert (await client.call_tool("any")).content == []


@pytest.mark.parametrize("nonsense", [["done"], "done", True])
async def test_invalid_result_of_a_task_raises_protocol_violation(autojump_clock: object, nonsense: Any) -> None:
    class Senseless(TaskPeer):
        async def say(self, message: dict[str, Any], said: Any) -> None:
            if message["method"] == "tasks/result":
                await self.result(message, nonsense)
            else:
                await super().say(message, said)

    async with with_core_tasks(lambda: DONE, kind=Senseless) as (client, _):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")


async def test_tool_failure_in_a_task_is_returned_as_a_result(autojump_clock: object) -> None:
    failed = {"content": [], "isError": True, "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}
    async with with_core_tasks(lambda: core("failed"), outcome=failed) as (client, _):
        assert (await client.call_tool("any")).is_error


@pytest.mark.parametrize("nonsense", [{}, [], core(status="new"), core(taskId="another"), core(ttl="x")])
async def test_call_raises_if_the_server_sends_an_invalid_task_state(autojump_clock: object, nonsense: Any) -> None:
    async with with_core_tasks(lambda: nonsense) as (client, peer):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_client_accepts_a_tool_result_from_a_server_that_creates_no_task(autojump_clock: object) -> None:
    """mcp 1.x refuses by a failure of the tool."""
    refused = {"content": [{"type": "text", "text": "no task"}], "isError": True}
    async with with_core_tasks(core, made=refused) as (client, peer):
        task = await client.start_task("any")
        assert (task.id, (await task.result()).is_error) == (None, True)
        assert (await client.call_tool("any")).is_error
        assert not {"tasks/get", "tasks/result", "tasks/cancel"} & set(methods_in(peer.wire))


@pytest.mark.parametrize("made", [{}, {"content": [], "task": 5}, {"task": {"taskId": "t"}}, {"task": core(taskId=5)}])
async def test_invalid_create_task_result_raises_protocol_violation(autojump_clock: object, made: Any) -> None:
    async with with_core_tasks(core, made=made) as (client, peer):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert len(peer.sent("tasks/cancel")) == (made == {"task": {"taskId": "t"}})


async def test_finished_task_can_be_cancelled_without_an_error(autojump_clock: object) -> None:
    class Over(TaskPeer):
        async def say(self, message: dict[str, Any], said: Any) -> None:
            await super().say(message, -32602 if message["method"] == "tasks/cancel" else said)

    async with with_core_tasks(lambda: DONE, kind=Over) as (client, peer):
        task = await client.start_task("any")
        await task.cancel()
        peer.look = core
        with pytest.raises(PeerError):  # it goes on, and the server does not cancel it
            await task.cancel()


async def test_client_polls_a_task_at_the_interval_of_the_server(autojump_clock: object) -> None:
    look = one_after_another(core(pollInterval=5000), core(), DONE)
    async with with_core_tasks(look, made={"task": core(pollInterval=2000)}) as (client, peer):
        before = trio.current_time()
        await client.call_tool("any")
        assert [time - before for time in peer.times] == pytest.approx([2, 7, 8])
