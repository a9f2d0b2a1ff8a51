"""What one request asks a client that can be sent no requests, round by round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import trio
from tests.state.peers import accepted, meta_of, server_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp.jsonrpc.errors import NotSerializable
from trio_mcp.jsonrpc.messages import Request
from trio_mcp.protocol.errors import CapabilityMissing, NoBackChannel
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES
from trio_mcp.protocol.revisions import LATEST_MODERN
from trio_mcp.runtime.outbox import Outbox
from trio_mcp.runtime.requests.questions import Question
from trio_mcp.runtime.requests.rounds import Rounds
from trio_mcp.state.requests import InboundRequest

ROOTS = {"roots": [{"uri": "file:///x"}]}


def request(**capabilities: Any) -> InboundRequest:
    meta = meta_of(**{CLIENT_CAPABILITIES: capabilities})
    return accepted(server_of(LATEST_MODERN).receive(Request(1, "tools/call", {"_meta": meta, "name": "x"})))


@attrs.define(eq=False)
class FakeScope:
    """Of a request, only what its questions look at."""

    nursery: trio.Nursery
    request: InboundRequest = attrs.field(factory=lambda: request(roots={}, sampling={}))
    outbox: Outbox = attrs.field(factory=lambda: Outbox(1000))
    sends: bool = True
    task: Any = None


class Asker:
    """A request that asks, and the rounds that were sent."""

    def __init__(self, nursery: trio.Nursery, known: dict[str, Any] | None = None) -> None:
        self.scope: Any = FakeScope(nursery)
        self.nursery = nursery
        self.sent: list[list[Question]] = []
        self.answers: list[Any] = []
        self.failures: list[Exception] = []
        self.rounds = Rounds(self.scope, self._send, known)

    def _send(self, questions: Sequence[Question]) -> None:
        self.sent.append(list(questions))
        self.rounds.park()

    async def _ask(self, method: str, params: Any) -> None:
        try:
            self.answers.append(await self.rounds.ask(method, params))
        except Exception as error:
            self.failures.append(error)

    def ask(self, method: str = "roots/list", params: Any = None) -> trio.CancelScope:
        """Ask in a task, and return the scope to give the question up by."""
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await self._ask(method, params)

        self.nursery.start_soon(run)
        return scope

    async def keys(self) -> list[str]:
        """The keys of the round that was sent last."""
        await wait_all_tasks_blocked()
        return [question.key for question in self.sent[-1]]

    async def answer(self, **answers: Any) -> None:
        self.rounds.receive(answers)
        self.rounds.resume()
        await wait_all_tasks_blocked()


async def asking(test: Callable[[Asker], Awaitable[None]], known: dict[str, Any] | None = None) -> None:
    async with trio.open_nursery() as nursery:
        await test(Asker(nursery, known))
        nursery.cancel_scope.cancel()


# One round


async def test_input_request_is_sent_and_the_task_that_waits_gets_its_answer() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        (key,) = await asker.keys()
        assert key.startswith("roots-")
        assert (asker.sent[0][0].request.method, asker.answers) == ("roots/list", [])
        await asker.answer(**{key: ROOTS})
        assert (asker.answers, asker.failures, len(asker.sent)) == ([ROOTS], [], 1)

    await asking(test)


async def test_input_requests_of_concurrent_tasks_are_sent_together() -> None:
    async def test(asker: Asker) -> None:
        for number in range(3):
            asker.ask("sampling/createMessage", {"n": number})
        keys = await asker.keys()
        assert (len(asker.sent), len(set(keys))) == (1, 3)
        await asker.answer(**{key: {"of": place} for place, key in enumerate(keys)})
        assert sorted(map(str, asker.answers)) == ["{'of': 0}", "{'of': 1}", "{'of': 2}"]

    await asking(test)


async def test_input_request_gets_the_requested_key_if_the_key_is_not_in_use() -> None:
    async def test(asker: Asker) -> None:
        for _ in range(2):
            asker.nursery.start_soon(asker.rounds.ask, "roots/list", None, "where")
        first, second = await asker.keys()
        assert "where" in (first, second)
        assert first != second
        await asker.answer(**{first: ROOTS, second: ROOTS})

    await asking(test)


async def test_input_request_key_is_derived_from_the_content_and_is_unique() -> None:
    async def keys(*params: Any) -> list[str]:
        found = list[str]()

        async def test(asker: Asker) -> None:
            for each in params:
                asker.ask("sampling/createMessage", each)
            found.extend(await asker.keys())

        await asking(test)
        return sorted(found)

    assert await keys({"n": 1}, {"n": 2}) == await keys({"n": 2}, {"n": 1}), "in any order"
    one, two = await keys({"n": 1}, {"n": 1})
    assert (one[:-2], one[-2:], two[-2:]) == (two[:-2], "-1", "-2")
    kind, digest, number = one.split("-")
    assert (kind, len(digest), number) == ("sampling", 16, "1")
    assert await keys({"n": 3}) != await keys({"n": 1})


async def test_input_request_waits_for_space_in_the_outbox() -> None:
    async def test(asker: Asker) -> None:
        asker.scope.outbox.put(b"x" * 4000)
        asker.ask()
        await wait_all_tasks_blocked()
        assert asker.sent == []
        await asker.scope.outbox.take()
        assert len(await asker.keys()) == 1

    await asking(test)


async def test_input_request_that_json_cannot_encode_raises_and_is_not_sent() -> None:
    async def test(asker: Asker) -> None:
        with pytest.raises(NotSerializable):
            await asker.rounds.ask("sampling/createMessage", {"n": float("nan")})
        await wait_all_tasks_blocked()
        assert asker.sent == []

    await asking(test)


async def test_cancelled_trio_task_of_a_handler_sends_no_input_request() -> None:
    async def test(asker: Asker) -> None:
        asker.ask().cancel()
        await wait_all_tasks_blocked()
        assert (asker.sent, asker.answers, asker.failures) == ([], [], [])

    await asking(test)


async def test_input_request_cancelled_before_sending_is_not_sent() -> None:
    async def test(asker: Asker) -> None:
        asker.scope.outbox.put(b"x" * 4000)
        asker.ask()
        given_up = asker.ask("sampling/createMessage", {})
        await wait_all_tasks_blocked()
        given_up.cancel()
        await wait_all_tasks_blocked()
        await asker.scope.outbox.take()
        assert [key.partition("-")[0] for key in await asker.keys()] == ["roots"]

    await asking(test)


async def test_server_sends_no_input_required_result_if_all_input_requests_were_cancelled() -> None:
    async def test(asker: Asker) -> None:
        asker.scope.outbox.put(b"x" * 4000)
        given_up = asker.ask()
        await wait_all_tasks_blocked()
        given_up.cancel()
        await wait_all_tasks_blocked()
        await asker.scope.outbox.take()
        await wait_all_tasks_blocked()
        assert asker.sent == []

    await asking(test)


async def test_input_request_is_not_sent_after_its_request_ended() -> None:
    async def test(asker: Asker) -> None:
        asker.scope.sends = False
        asker.ask()
        await wait_all_tasks_blocked()
        assert (asker.sent, asker.answers, asker.failures) == ([], [], [])

    await asking(test)


async def test_input_request_without_the_client_capability_raises_and_concurrent_input_requests_are_sent() -> None:
    async def test(asker: Asker) -> None:
        asker.ask("elicitation/create", {"mode": "form"})
        asker.ask()
        (key,) = await asker.keys()
        assert key.startswith("roots-")
        [failure] = asker.failures
        assert isinstance(failure, CapabilityMissing)
        assert failure.capability.startswith("elicitation")

    await asking(test)


async def test_server_sends_no_input_required_result_if_the_only_input_request_cannot_be_sent() -> None:
    async def test(asker: Asker) -> None:
        asker.ask("elicitation/create", {"mode": "form"})
        await wait_all_tasks_blocked()
        assert (asker.sent, len(asker.failures)) == ([], 1)
        asker.ask()
        assert len(await asker.keys()) == 1

    await asking(test)


# Several rounds


async def test_unanswered_input_request_is_sent_again_with_the_same_key() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        asker.ask("sampling/createMessage", {})
        by_kind = {key.partition("-")[0]: key for key in await asker.keys()}
        await asker.answer(**{by_kind["roots"]: ROOTS})
        assert asker.answers == [ROOTS]
        assert await asker.keys() == [by_kind["sampling"]]
        await asker.answer()
        assert await asker.keys() == [by_kind["sampling"]]
        assert len(asker.sent) == 3
        await asker.answer(**{by_kind["sampling"]: {"ok": 1}})
        assert asker.answers == [ROOTS, {"ok": 1}]
        assert len(asker.sent) == 3

    await asking(test)


async def test_input_response_with_an_unknown_key_is_ignored() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        (key,) = await asker.keys()
        await asker.answer(other={"a": 1}, **{key: ROOTS})
        assert asker.answers == [ROOTS]

    await asking(test)


async def test_input_response_to_a_cancelled_input_request_is_ignored() -> None:
    async def test(asker: Asker) -> None:
        given_up = asker.ask()
        (key,) = await asker.keys()
        given_up.cancel()
        await wait_all_tasks_blocked()
        await asker.answer(**{key: ROOTS})
        assert (asker.answers, asker.failures) == ([], [])

    await asking(test)


async def test_input_request_made_while_a_retry_is_on_its_way_is_sent_after_that_retry() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        (key,) = await asker.keys()
        asker.scope.sends = False
        asker.ask("sampling/createMessage", {})
        await wait_all_tasks_blocked()
        assert len(asker.sent) == 1
        (unsent,) = [each for each in asker.rounds._open.values() if not each.sent]
        asker.scope.sends = True
        await asker.answer(**{key: ROOTS, unsent.key: {"guessed": 1}})
        assert asker.answers == [ROOTS], "an answer to what the client has not seen is ignored"
        assert await asker.keys() == [unsent.key]

    await asking(test)


async def test_waiting_for_the_retry_returns_immediately_unless_an_input_request_is_open() -> None:
    async def test(asker: Asker) -> None:
        await asker.rounds.resumed()
        asker.ask()
        (key,) = await asker.keys()
        done = list[str]()

        async def wait() -> None:
            await asker.rounds.resumed()
            done.append("resumed")

        asker.nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert done == []
        await asker.answer(**{key: ROOTS})
        assert done == ["resumed"]
        await asker.rounds.resumed()

    await asking(test)


async def test_input_responses_of_one_retry_are_not_reused_in_the_next_retry() -> None:
    async def test(asker: Asker) -> None:
        first = asker.ask()
        (key,) = await asker.keys()
        asker.ask("sampling/createMessage", {})
        await asker.answer(**{key: ROOTS})
        first.cancel()
        (other,) = await asker.keys()
        asker.rounds.resume()
        assert asker.rounds._responses == {}
        assert await asker.keys() == [other]
        assert asker.answers == [ROOTS]

    await asking(test)


# A handler that runs again


async def test_second_run_of_a_handler_does_not_wait_for_input_requests_answered_in_its_first_run() -> None:
    keys = list[str]()

    async def first(asker: Asker) -> None:
        asker.ask()
        keys.extend(await asker.keys())

    async def again(asker: Asker) -> None:
        asker.ask()
        asker.ask("sampling/createMessage", {})
        assert [key.partition("-")[0] for key in await asker.keys()] == ["sampling"]
        assert asker.answers == [ROOTS]

    await asking(first)
    await asking(again, {keys[0]: ROOTS})


# The end


async def test_open_and_later_input_requests_fail_when_their_request_ends() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        await asker.keys()
        asker.rounds.close()
        asker.rounds.close()
        await wait_all_tasks_blocked()
        asker.ask()
        await wait_all_tasks_blocked()
        assert [type(failure) for failure in asker.failures] == [NoBackChannel, NoBackChannel]
        assert str(asker.failures[0]).startswith("the request is over")
        assert len(asker.sent) == 1

    await asking(test)


async def test_input_response_that_arrived_before_its_request_ends_still_reaches_the_waiting_task() -> None:
    async def test(asker: Asker) -> None:
        asker.ask()
        (key,) = await asker.keys()
        asker.rounds.receive({key: ROOTS})
        asker.rounds.resume()
        asker.rounds.close()
        await wait_all_tasks_blocked()
        assert (asker.answers, asker.failures) == ([ROOTS], [])

    await asking(test)
