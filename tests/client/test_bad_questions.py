"""Servers that ask what they may not ask, too much, or too often: an error of that one call."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.rounds import FORM, ROOTS, SAMPLE, URL, RoundsPeer, asking, calls_in, cancels_of, rounds_of
from tests.interaction.client.raw import text_of

from trio_mcp import ProtocolViolation
from trio_mcp.client.options import ClientSettings


async def unwanted(_: object) -> Any:
    """A handler that must not be called."""
    pytest.fail("asked for nothing")


async def _refused(result: dict[str, Any], match: str, **options: Any) -> None:
    """The result is an error of its call, no handler is asked, the server is told, and the next call is served."""

    async def script(peer: RoundsPeer) -> None:
        await peer.result(await peer.call(), {"resultType": "input_required", **result})
        await peer.text(await peer.call())

    async with asking(script, **({"elicitation": unwanted} | options)) as (client, peer):
        with pytest.raises(ProtocolViolation, match=match):
            await client.call_tool("any")
        assert text_of(await client.call_tool("any")) == "done"
    assert rounds_of(peer) == [{}, {}]
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "the answer makes no sense")]


async def test_input_required_result_without_requests_and_state_raises_protocol_violation(
    autojump_clock: object,
) -> None:
    await _refused({}, "neither inputRequests nor requestState")


@pytest.mark.parametrize(
    "bad",
    [
        {"requestState": 5},
        {"requestState": {"a": 1}},
        {"inputRequests": []},
        {"inputRequests": "all"},
        {"inputRequests": {"q": None}},
        {"inputRequests": {"q": {}}},
        {"inputRequests": {"q": {"method": "tools/call", "params": {"name": "x"}}}},
        {"inputRequests": {"q": {"method": 5}}},
        {"inputRequests": {"q": {"method": "elicitation/create", "params": []}}},
        {"inputRequests": {"q": {"method": "elicitation/create", "params": {"message": 1}}}},
        {"inputRequests": {"q": {"method": "elicitation/create"}}},
        {"inputRequests": {"q": {"method": "sampling/createMessage", "params": {"messages": []}}}},
    ],
    ids=str,
)
async def test_malformed_input_requests_raise_protocol_violation(autojump_clock: object, bad: Any) -> None:
    await _refused({"inputRequests": {"q": FORM}, "requestState": "s"} | bad, "malformed|cannot give")


@pytest.mark.parametrize(
    ("missing", "question"),
    [
        ("elicitation", FORM),
        ("sampling", SAMPLE),
        ("roots", ROOTS),
        ("elicitation_url", URL),
        ("sampling_tools", {**SAMPLE, "params": {**SAMPLE["params"], "tools": []}}),
    ],
)
async def test_input_request_of_an_undeclared_kind_raises_protocol_violation(
    autojump_clock: object, missing: str, question: Any
) -> None:
    lacking: dict[str, Any] = {missing: False if missing == "sampling_tools" else None}
    other = ROOTS if missing != "roots" else FORM
    await _refused({"requestState": "s", "inputRequests": {"a": other, "b": question}}, "cannot give", **lacking)


async def test_call_raises_if_a_result_contains_more_than_max_input_requests(autojump_clock: object) -> None:
    await _refused({"inputRequests": {str(n): FORM for n in range(4)}}, "4 input requests", max_input_requests=3)


async def test_client_answers_up_to_max_input_requests_in_one_result(autojump_clock: object) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), **{f"q{n}": FORM for n in range(3)})
        await peer.text(await peer.call())

    async with asking(script, max_input_requests=3) as (client, _):
        assert text_of(await client.call_tool("any")) == "done"


@pytest.mark.parametrize("questions", [{"q": FORM}, {}], ids=["questions", "state-only"])
async def test_call_raises_after_more_input_required_results_than_max_rounds(
    autojump_clock: object, questions: Any
) -> None:
    async def script(peer: RoundsPeer) -> None:
        for _ in range(3):
            await peer.ask(await peer.call(), **questions)
        await peer.text(await peer.call(), "in time")
        for _ in range(4):
            await peer.ask(await peer.call(), **questions)
        await peer.text(await peer.call(), "next")

    async with asking(script, max_rounds=3) as (client, peer):
        assert text_of(await client.call_tool("any")) == "in time"
        with pytest.raises(ProtocolViolation, match="more than 3 times"):
            await client.call_tool("any")
        assert text_of(await client.call_tool("any")) == "next"
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[7]["id"]]


@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("completion/complete", lambda client: client.request("completion/complete", {}, dict)),
        ("tools/list", lambda client: client.request("tools/list", None, dict)),
        ("server/discover", lambda client: client.ping()),
    ],
)
async def test_input_required_result_of_a_method_that_cannot_request_input_raises_protocol_violation(
    autojump_clock: object, method: str, ask: Any
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.until(method), q=FORM)
        await peer.text(await peer.call())

    async with asking(script, elicitation=unwanted) as (client, peer):
        with pytest.raises(ProtocolViolation, match="this method doesn't allow"):
            await ask(client)
        assert text_of(await client.call_tool("any")) == "done"
    assert cancels_of(peer) == []


async def test_unknown_result_type_in_the_response_to_a_retry_raises_protocol_violation(autojump_clock: object) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await peer.result(await peer.call(), {"resultType": "hologram"})

    async with asking(script) as (client, peer):
        with pytest.raises(ProtocolViolation, match="hologram"):
            await client.call_tool("any")
    assert cancels_of(peer) == []


@pytest.mark.parametrize("option", ["max_rounds", "max_input_requests", "max_pages"])
def test_client_raises_for_input_request_limits_that_are_not_positive(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        ClientSettings(**{option: 0})  # type: ignore[arg-type]
