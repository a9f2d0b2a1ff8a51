"""Calls that a modern server answers by asking: what goes back, round after round."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.client.rounds import ANSWERS, FORM, ROOTS, SAMPLE, URL, RoundsPeer, asking, calls_in, cancels_of, rounds_of
from tests.interaction.client.raw import RawPeer, scripted, text_of
from trio.testing import Sequencer

from trio_mcp import fail_after_silence
from trio_mcp.client.opening import open_client
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    TextContent,
)

NAME = {"action": "accept", "content": {"name": "Ann"}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "model"}
LISTED = {"roots": [{"uri": "file:///a", "name": "a"}]}
TEXT = {"content": [{"type": "text", "text": "done"}]}


# What is declared


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, {}),
        ({"sampling": ANSWERS["sampling"]}, {"sampling": {}}),
        ({"sampling": ANSWERS["sampling"], "sampling_tools": True}, {"sampling": {"tools": {}}}),
        ({"elicitation": ANSWERS["elicitation"]}, {"elicitation": {"form": {}}}),
        ({"elicitation_url": ANSWERS["elicitation"]}, {"elicitation": {"url": {}}}),
        ({"roots": []}, {"roots": {}}),
    ],
)
async def test_each_client_request_declares_only_the_capabilities_for_which_the_client_has_handlers(
    autojump_clock: object, options: Any, declared: Any
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel, tasks=False, **options) as client:
        await client.call_tool("any")
    assert [m["params"]["_meta"][CLIENT_CAPABILITIES] for m in peer.wire] == [declared, declared]


# Answering


@pytest.mark.parametrize(
    ("question", "answer"), [(FORM, NAME), (SAMPLE, SAID), (ROOTS, LISTED)], ids=["form", "sampling", "roots"]
)
async def test_client_handlers_answer_input_requests_of_modern_and_requests_of_legacy_revisions(
    autojump_clock: object, question: Any, answer: Any
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=question)
        await peer.text(await peer.call())

    async with asking(script) as (client, peer):
        assert text_of(await client.call_tool("any")) == "done"
    assert rounds_of(peer) == [{}, {"requestState": "s1", "inputResponses": {"q": answer}}]
    assert cancels_of(peer) == []


async def test_url_elicitation_without_an_elicitation_id_calls_the_url_handler(autojump_clock: object) -> None:
    async def visit(params: ElicitURLParams) -> ElicitResult:
        assert (params.url, params.elicitation_id) == ("https://example.com", None)
        return ElicitResult("accept")

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=URL)
        await peer.text(await peer.call())

    async with asking(script, elicitation_url=visit) as (client, peer):
        await client.call_tool("any")
    assert rounds_of(peer)[1]["inputResponses"] == {"q": {"action": "accept"}}


async def test_concurrent_input_requests_are_answered_in_the_order_of_completion(
    autojump_clock: object,
) -> None:
    turns = Sequencer()

    async def slow(_: ElicitFormParams) -> dict[str, Any]:
        async with turns(0):
            pass
        async with turns(2):
            return {"name": "Ann"}

    async def quick(_: CreateMessageParams) -> CreateMessageResult:
        async with turns(1):
            return CreateMessageResult("assistant", TextContent("hello"), "model")

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), b=FORM, a=SAMPLE, c=ROOTS)
        await peer.text(await peer.call())

    async with asking(script, elicitation=slow, sampling=quick) as (client, peer):
        await client.call_tool("any")
    assert list(rounds_of(peer)[1]["inputResponses"].items()) == [("b", NAME), ("a", SAID), ("c", LISTED)]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.call_tool("any", {"a": 1}),
        lambda client: client.get_prompt("any", {"a": "1"}),
        lambda client: client.read_resource("note://any"),
    ],
    ids=["call_tool", "get_prompt", "read_resource"],
)
async def test_retry_with_input_responses_repeats_the_request_with_a_new_id(autojump_clock: object, call: Any) -> None:
    async def script(peer: RoundsPeer) -> None:
        first = await peer.read()
        await peer.ask(first, q=FORM)
        await peer.result(await peer.read(), {**TEXT, "messages": [], "contents": []})

    async with asking(script) as (client, peer):
        await call(client)
    first, second = peer.wire[1:]
    assert second["id"] != first["id"]
    assert second["method"] == first["method"]
    assert second["params"] == {**first["params"], "requestState": "s1", "inputResponses": {"q": NAME}}


@pytest.mark.parametrize("state", ["", "null", '{"a": 1}', " é𝄞\u2028 ", "x" * 100_000], ids=len)
async def test_client_returns_the_request_state_unchanged(autojump_clock: object, state: str) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), state, q=FORM)
        await peer.text(await peer.call())

    async with asking(script) as (client, peer):
        await client.call_tool("any")
    assert rounds_of(peer)[1]["requestState"] == state


async def test_each_retry_contains_only_the_request_state_and_answers_for_the_previous_result(
    autojump_clock: object,
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), "s1", form=FORM)
        await peer.ask(await peer.call(), "s2", model=SAMPLE)
        await peer.ask(await peer.call(), None, roots=ROOTS)
        await peer.text(await peer.call())

    async with asking(script) as (client, peer):
        await client.call_tool("any")
    assert rounds_of(peer) == [
        {},
        {"requestState": "s1", "inputResponses": {"form": NAME}},
        {"requestState": "s2", "inputResponses": {"model": SAID}},
        {"inputResponses": {"roots": LISTED}},
    ]
    assert len({call["id"] for call in calls_in(peer)}) == 4


async def test_client_retries_immediately_after_a_result_with_request_state_but_no_input_requests(
    autojump_clock: object,
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), "later")
        await peer.text(await peer.call())

    async with asking(script) as (client, peer):
        before = trio.current_time()
        await client.call_tool("any")
        assert trio.current_time() == before
    assert rounds_of(peer) == [{}, {"requestState": "later"}]


async def test_client_answers_empty_input_requests_with_empty_input_responses(autojump_clock: object) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.result(await peer.call(), {"resultType": "input_required", "inputRequests": {}})
        await peer.text(await peer.call())

    async with asking(script) as (client, peer):
        await client.call_tool("any")
    assert rounds_of(peer) == [{}, {"inputResponses": {}}]


async def test_retry_drops_the_request_state_and_input_responses_that_the_application_sent_first(
    autojump_clock: object,
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), None, q=FORM)
        await peer.text(await peer.call())

    mine = {"name": "any", "requestState": "mine", "inputResponses": {"mine": NAME}}
    async with asking(script) as (client, peer):
        await client.request("tools/call", mine, dict)
    assert rounds_of(peer) == [
        {"requestState": "mine", "inputResponses": {"mine": NAME}},
        {"inputResponses": {"q": NAME}},
    ]


async def test_concurrent_calls_do_not_share_request_state_or_input_responses(autojump_clock: object) -> None:
    async def named(params: ElicitFormParams) -> dict[str, Any]:
        return {"name": params.message}

    def form(message: str) -> Any:
        return {**FORM, "params": {**FORM["params"], "message": message}}

    async def script(peer: RoundsPeer) -> None:
        one, two = await peer.call(), await peer.call()
        names = {call["id"]: call["params"]["name"] for call in (one, two)}
        for call in (two, one):
            await peer.ask(call, f"state of {names[call['id']]}", q=form(names[call["id"]]))
        for _ in range(2):
            await peer.text(call := await peer.call(), call["params"]["name"])

    async with asking(script, elicitation=named) as (client, peer), trio.open_nursery() as nursery:

        async def call(name: str) -> None:
            assert text_of(await client.call_tool(name)) == name

        nursery.start_soon(call, "one")
        nursery.start_soon(call, "two")
    for again in calls_in(peer)[2:]:
        name = again["params"]["name"]
        assert again["params"]["requestState"] == f"state of {name}"
        assert again["params"]["inputResponses"]["q"]["content"] == {"name": name}


async def test_concurrent_calls_continue_during_an_elicitation(autojump_clock: object) -> None:
    thinking, decided = trio.Event(), trio.Event()

    async def think(_: ElicitFormParams) -> dict[str, Any]:
        thinking.set()
        await decided.wait()
        return {}

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await peer.text(await peer.call(), "meanwhile")
        await peer.text(await peer.call(), "at last")

    async with asking(script, elicitation=think) as (client, _), trio.open_nursery() as nursery:

        async def asked() -> None:
            assert text_of(await client.call_tool("asks")) == "at last"

        nursery.start_soon(asked)
        await thinking.wait()
        assert text_of(await client.call_tool("other")) == "meanwhile"
        decided.set()


# Progress


async def test_each_retry_has_a_new_progress_token_and_the_same_callback(autojump_clock: object) -> None:
    seen: list[float] = []

    async def script(peer: RoundsPeer) -> None:
        first = await peer.call()
        await peer.progress(first, 1)
        await peer.ask(first, q=FORM)
        second = await peer.call()
        await peer.progress(first, 99)
        await peer.progress(second, 2)
        await peer.text(second)

    async with asking(script) as (client, peer):
        await client.call_tool("any", on_progress=lambda progress: seen.append(progress.progress))
    assert seen == [1, 2]
    tokens = [call["params"]["_meta"]["progressToken"] for call in calls_in(peer)]
    assert tokens == [call["id"] for call in calls_in(peer)]


async def test_progress_of_a_retry_restarts_the_fail_after_silence_time(autojump_clock: object) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        second = await peer.call()
        for value in range(5):
            await trio.sleep(4)
            await peer.progress(second, value)
        await peer.ask(second, q=FORM)
        await peer.call()

    async with asking(script) as (client, peer):
        with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=600):
            await client.call_tool("any")
        assert trio.current_time() >= 25
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[2]["id"]]
