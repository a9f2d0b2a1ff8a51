"""A client that only starts tasks declares what another one answers later."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.rounds import FORM, ROOTS, SAMPLE, URL, RoundsPeer, asking, cancels_of
from tests.client.scripted_tasks import TaskPeer, asks, state, with_core_tasks, with_tasks
from tests.interaction.client.raw import text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CodedError, ProtocolViolation
from trio_mcp.client.options import ClientSettings
from trio_mcp.types import ClientCapabilities, Elicitation, Roots, Sampling

LATER = ClientCapabilities(elicitation=Elicitation())
UNANSWERED: dict[str, Any] = {"elicitation": None, "sampling": None, "roots": None}
RELATED = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}


async def ask(peer: TaskPeer, question: dict[str, Any], request_id: str, **more: Any) -> None:
    params = {**question.get("params", {}), **more}
    await peer.send({"jsonrpc": "2.0", "id": request_id, "method": question["method"], "params": params})
    await wait_all_tasks_blocked()


def replies(peer: TaskPeer) -> dict[str, Any]:
    return {message["id"]: message for message in peer.wire if "method" not in message}


async def test_client_without_a_handler_can_leave_only_elicitations_of_tasks_for_another_client(
    autojump_clock: object,
) -> None:
    options: dict[str, Any] = UNANSWERED | {"answers_later": LATER}
    async with with_core_tasks(lambda: state(), **options) as (_, peer):
        await ask(peer, FORM, "of the task", **RELATED)
        await ask(peer, FORM, "of nobody")
        await ask(peer, SAMPLE, "undeclared", **RELATED)
    told = replies(peer)
    assert told.keys() == {"of nobody", "undeclared"}
    assert told["of nobody"]["error"]["code"] == -32601
    assert "answered later" in told["of nobody"]["error"]["message"]
    assert told["undeclared"]["error"]["message"] == "Method not found"
    assert peer.wire[0]["params"]["capabilities"] == {"elicitation": {"form": {}}}


async def test_client_answers_the_input_requests_of_a_task_that_are_not_left_for_another_client(
    autojump_clock: object,
) -> None:
    looks = iter([asks(who=FORM, model=SAMPLE), asks(who=FORM)])
    done = state("completed", result={"resultType": "complete", "content": [{"type": "text", "text": "done"}]})
    options: dict[str, Any] = {"elicitation": None, "answers_later": LATER}
    async with with_tasks(lambda: next(looks, done), **options) as (client, peer):
        task = await client.start_task("any")
        assert text_of(await task.result()) == "done"
        assert [list(update["inputResponses"]) for update in peer.sent("tasks/update")] == [["model"]]


async def test_call_without_a_task_raises_coded_error_for_an_input_request_to_be_answered_later(
    autojump_clock: object,
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.result(await peer.call(), {"resultType": "input_required", "inputRequests": {"q": FORM}})
        await peer.text(await peer.call())

    async with asking(script, **(UNANSWERED | {"answers_later": LATER})) as (client, peer):
        with pytest.raises(CodedError, match="answered later") as caught:
            await client.call_tool("any")
        assert not isinstance(caught.value, ProtocolViolation)
        assert text_of(await client.call_tool("any")) == "done"
    assert len(cancels_of(peer)) == 1


@pytest.mark.parametrize(
    ("later", "handlers", "declared"),
    [
        (Elicitation(url={}), ("elicitation",), {"elicitation": {"form": {}, "url": {}}}),
        (Elicitation(), ("elicitation_url",), {"elicitation": {"form": {}, "url": {}}}),
        (Elicitation(url={}), (), {"elicitation": {"url": {}}}),
        (Sampling(tools={}), ("sampling",), {"sampling": {"tools": {}}}),
        (Sampling(), ("elicitation",), {"sampling": {}, "elicitation": {"form": {}}}),
        (Roots(), (), {"roots": {}}),
    ],
)
async def test_client_declares_capabilities_for_input_requests_that_another_client_answers_later(
    autojump_clock: object, later: Any, handlers: tuple[str, ...], declared: Any
) -> None:
    capabilities = ClientCapabilities(**{type(later).__name__.lower(): later})
    options: dict[str, Any] = UNANSWERED | dict.fromkeys(handlers, print) | {"answers_later": capabilities}
    async with with_core_tasks(lambda: state(), **options) as (_, peer):
        pass
    assert peer.wire[0]["params"]["capabilities"] == declared


@pytest.mark.parametrize(
    ("later", "question", "is_left"),
    [
        (Elicitation(url={}), URL, True),
        (Elicitation(url={}), FORM, False),
        (Sampling(tools={}), {**SAMPLE, "params": {**SAMPLE["params"], "tools": []}}, True),
        (Sampling(tools={}), SAMPLE, False),
        (Roots(), ROOTS, False),
    ],
)
async def test_client_does_not_answer_a_server_request_of_a_task_if_another_client_answers_later(
    autojump_clock: object, later: Any, question: Any, is_left: bool
) -> None:
    capabilities = ClientCapabilities(**{type(later).__name__.lower(): later})
    async with with_core_tasks(lambda: state(), answers_later=capabilities) as (_, peer):
        await ask(peer, question, "q", **RELATED)
        told = replies(peer)
    assert ("q" not in told) if is_left else ("result" in told["q"])


def test_requests_that_another_client_answers_later_can_be_only_sampling_elicitation_and_roots() -> None:
    with pytest.raises(ValueError, match="answers_later may contain only sampling, elicitation and roots"):
        ClientSettings(answers_later=ClientCapabilities(extensions={"io.modelcontextprotocol/tasks": {}}))
    with pytest.raises(ValueError, match="forwards or answers_later"):
        ClientSettings(answers_later=LATER, forwards=LATER)
