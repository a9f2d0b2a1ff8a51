"""Any replica takes any modern request: a retry whose handler is parked in another one is carried there."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio
from tests.fleet.fleet import FORM, Fleet, Member, accepted, call, fleet, question_in
from tests.orders import run_in_order_of
from tests.serving.http.protection import ISSUER, RESOURCE, issued, protected
from tests.serving.http.raw import Answer, modern, request_bytes
from tests.serving.http.scenes import messages_in, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Next, RequestContext, Server, ServerRequest
from trio_mcp.auth import Principal
from trio_mcp.auth.resource_server.protected import Protected
from trio_mcp.auth.signing import ProofKey
from trio_mcp.fleet.messenger import LEASE_SECONDS, MessageRefused, ReplicaMessage, SealedMessenger
from trio_mcp.fleet.retry_receiver import (
    CANCEL,
    LINES,
    RETRY,
    CancelMessage,
    ForwardedAuth,
    LinesMessage,
    RetryMessage,
)
from trio_mcp.runtime.peer import PrincipalId
from trio_mcp.server.request_state import StateCipher
from trio_mcp.types import ElicitAnswer


def named(answer: ElicitAnswer) -> Any:
    assert answer.content is not None
    return answer.content["name"]


def add_tools(server: Server, members: Fleet, number: int) -> None:
    journals = members.journals

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def greet(name: str, ctx: RequestContext) -> str:
        """Ask for a name, and say something before and after."""
        journal = journals[name]
        journal.ran_at.append(number)
        answer = await ctx.elicit("Who?", FORM)
        ctx.progress(1, 2, "half")
        await ctx.log.info("asked")
        journal.seen = {"headers": dict(ctx.headers or {}), "session": ctx.session_id, "closes": ctx.close_stream(1)}
        return f"hello {named(answer)} from {number}"

    @server.tool
    async def twice(name: str, ctx: RequestContext) -> str:
        """Ask for two names, one after the other."""
        first = await ctx.elicit("First?", FORM)
        second = await ctx.elicit("Second?", FORM)
        return f"{named(first)} {named(second)} from {number}"

    @server.tool
    async def linger(name: str, ctx: RequestContext, speaks: bool = False) -> str:
        """Ask, and then wait until told to go on."""
        journal = journals[name]
        try:
            await ctx.elicit("Who?", FORM)
            journal.seen["left"] = trio.current_effective_deadline() - trio.current_time()
            journal.resumed.set()
            if speaks:
                ctx.progress(1)
            await journal.may_go_on.wait()
            return f"done by {number}"
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()

    @server.tool
    async def flood(name: str, count: int, size: int, ctx: RequestContext) -> str:
        journal = journals[name]
        await ctx.elicit("Who?", FORM)
        try:
            for told in range(count):
                await ctx.log.info({"told": told, "padding": "x" * size})
                journal.seen["told"] = told
            return "y" * size
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        assert ctx.auth is not None
        before = ctx.auth.token
        await ctx.elicit("Who?", FORM)
        auth = ctx.auth
        assert auth is not None
        return {
            "tokens": [before, auth.token],
            "scopes": sorted(auth.scopes),
            "claims": dict(auth.claims),
            "extra": dict(auth.extra),
            "client": auth.client_id,
            "at": number,
        }

    @server.tool
    async def fail(ctx: RequestContext) -> str:
        await ctx.elicit("Who?", FORM)
        raise RuntimeError("broken")

    @server.tool(replay=True)
    async def replayed(name: str, ctx: RequestContext) -> str:
        journals[name].ran_at.append(number)
        answer = await ctx.elicit("Who?", FORM)
        return f"hello {named(answer)} from {number}"


async def parked(member: Member, tool: str, **arguments: Any) -> dict[str, Any]:
    return question_in(await member.call(tool, arguments))


async def test_retry_is_forwarded_to_the_replica_whose_handler_waits_for_it(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "greet", name="a")
        answer = await two.call(
            "greet", {"name": "a"}, before=question, answers=accepted(question, name="Ada"), meta={"progressToken": 7}
        )
        assert answer.status == 200
        *told, reply = messages_in(answer)
        assert text_of(reply) == "hello Ada from 0"
        assert reply["id"] == 1
        assert [each["method"] for each in told] == ["notifications/progress", "notifications/message"]
        assert told[0]["params"] == {"progressToken": 7, "progress": 1, "total": 2, "message": "half"}
        assert trio.current_time() == 0


async def test_handler_sees_the_http_headers_of_a_forwarded_retry(autojump_clock: MockClock) -> None:
    members: Fleet
    async with fleet(add_tools) as members:
        one, two = members
        question = await parked(one, "greet", name="a")
        params = call("greet", {"name": "a"}, before=question, answers=accepted(question, name="Ada"))
        answer = await two.endpoint.modern("tools/call", params, X_Who="me")
        assert text_of(messages_in(answer)[-1]) == "hello Ada from 0"
        seen = members.journals["a"].seen
        assert seen["headers"]["x-who"] == "me"
        assert seen["session"] is None
        assert seen["closes"] is False


async def test_reply_of_a_forwarded_retry_without_notifications_is_sent_as_json(autojump_clock: MockClock) -> None:
    async with fleet(add_tools, 3) as (one, two, three):
        first = await parked(one, "twice", name="a")
        answer = await two.call("twice", {"name": "a"}, before=first, answers=accepted(first, name="Ada"))
        assert answer.headers["content-type"] == "application/json"
        second = question_in(answer)
        answer = await three.call("twice", {"name": "a"}, before=second, answers=accepted(second, name="Bob"))
        assert text_of(answer.json) == "Ada Bob from 0"


async def test_retry_that_arrives_at_the_replica_of_its_handler_sends_no_message_between_replicas(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as (one, two):
        first = await parked(one, "twice", name="a")
        second = question_in(await two.call("twice", {"name": "a"}, before=first, answers=accepted(first, name="Ada")))
        sent = one.ways.uses["courier.send"]
        answer = await one.call("twice", {"name": "a"}, before=second, answers=accepted(second, name="Bob"))
        assert text_of(answer.json) == "Ada Bob from 0"
        assert one.ways.uses["courier.send"] == sent


async def test_forwarded_retry_needs_two_messages_between_replicas_and_two_acknowledgements(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "twice", name="a")
        await two.call("twice", {"name": "a"}, before=question, answers=accepted(question, name="Ada"))
        await wait_all_tasks_blocked()
        assert one.ways.uses["courier.send"] == two.ways.uses["courier.send"] == 2
        assert not one.ways.uses["courier.find_dead"] + two.ways.uses["courier.find_dead"]


async def test_tool_with_replay_runs_again_at_the_replica_that_received_the_retry(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        question = await parked(one, "replayed", name="a")
        answer = await two.call("replayed", {"name": "a"}, before=question, answers=accepted(question, name="Ada"))
        assert text_of(answer.json) == "hello Ada from 1"
        assert members.journals["a"].ran_at == [0, 1]
        assert not one.ways.uses["courier.send"] + two.ways.uses["courier.send"]


async def test_client_gets_the_error_of_a_handler_that_fails_after_a_forwarded_retry(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "fail")
        answer = await two.call("fail", before=question, answers=accepted(question, name="Ada"))
        assert answer.status == 200
        assert answer.json["result"]["isError"] is True
        assert "broken" in caplog.text


async def test_every_replica_rejects_a_request_state_that_was_used_before(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "greet", name="a")
        answers = accepted(question, name="Ada")
        await two.call("greet", {"name": "a"}, before=question, answers=answers)
        for member in (one, two):
            again = await member.call("greet", {"name": "a"}, before=question, answers=answers)
            assert again.code == -32602
            assert "was used already" in again.json["error"]["message"]


async def test_only_one_of_concurrent_retries_at_different_replicas_succeeds(autojump_clock: MockClock) -> None:
    answers = list[Answer]()
    async with fleet(add_tools, 3) as members:
        question = await parked(members[0], "linger", name="a")
        members.journals["a"].may_go_on.set()

        async def retry(member: Member) -> None:
            given = accepted(question, name="Ada")
            answers.append(await member.call("linger", {"name": "a"}, before=question, answers=given))

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(retry, member)
        assert sorted("result" if "result" in each.json else str(each.code) for each in answers) == [
            "-32602",
            "-32602",
            "result",
        ]


@pytest.mark.parametrize("speaks", [False, True], ids=["before the first byte", "on a stream"])
async def test_client_that_disconnects_from_another_replica_cancels_the_handler(
    speaks: bool, autojump_clock: MockClock
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a", speaks=speaks)
        arguments = {"name": "a", "speaks": speaks}
        connection = await two.begin(
            "linger", arguments, before=question, answers=accepted(question), meta={"progressToken": 1}
        )
        await journal.resumed.wait()
        if speaks:
            assert (await connection.head()).status == 200
            assert (await connection.event()).data["method"] == "notifications/progress"
        await connection.aclose()
        await journal.ended.wait()
        assert trio.current_time() == 0
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DISCONNECT
        assert journal.cancellation.reason == "the client closed the response"


async def test_deadline_set_by_the_caller_applies_to_a_forwarded_retry(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a")
        with trio.fail_after(60):
            await two.begin(
                "linger",
                {"name": "a"},
                before=question,
                answers=accepted(question),
                meta={"trio-mcp/remainingMs": 5000},
            )
            await journal.ended.wait()
        assert 5 <= trio.current_time() <= 6.1
        assert 5 <= journal.seen["left"] <= 6.1
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DEADLINE


async def test_client_gets_no_result_of_a_forwarded_retry_that_shutdown_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a")
        connection = await two.begin("linger", {"name": "a"}, before=question, answers=accepted(question))
        await journal.resumed.wait()
        two.scope.cancel(reason="the replica ends at once")
        await journal.ended.wait()
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DISCONNECT
        journal.may_go_on.set()
        answer = await connection.answer()
        assert b"result" not in answer.body


async def test_call_fails_with_an_error_when_the_replica_of_its_handler_dies(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        question = await parked(one, "linger", name="a")
        connection = await two.begin("linger", {"name": "a"}, before=question, answers=accepted(question))
        await members.journals["a"].resumed.wait()
        one.ways.are_cut = True
        answer = await connection.answer()
        assert answer.code == -31003
        assert answer.json["error"]["message"] == "the process that ran this call has ended; call again"
        assert LEASE_SECONDS - 1.6 <= trio.current_time() <= LEASE_SECONDS + 1


async def test_retry_of_a_call_whose_handler_ran_at_a_dead_replica_fails_with_an_error(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "linger", name="a")
        one.ways.are_cut = True
        answer = await two.call("linger", {"name": "a"}, before=question, answers=accepted(question))
        assert answer.code == -31003
        assert trio.current_time() <= LEASE_SECONDS + 1


async def test_retry_of_a_call_whose_handler_ran_at_a_gracefully_stopped_replica_fails_immediately(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as (one, two):
        await trio.sleep(LEASE_SECONDS)  # a replica that has only begun cannot tell of deaths
        question = await parked(one, "linger", name="a")
        one.scope.cancel(reason="the replica ends at once")
        await one.over.wait()
        began = trio.current_time()
        answer = await two.call("linger", {"name": "a"}, before=question, answers=accepted(question))
        assert answer.code == -31003
        assert trio.current_time() - began < 0.5


async def test_handler_is_cancelled_if_the_replica_that_forwarded_its_retry_dies(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a")
        await two.begin("linger", {"name": "a"}, before=question, answers=accepted(question))
        await journal.resumed.wait()
        two.ways.are_cut = True
        await journal.ended.wait()
        assert trio.current_time() <= LEASE_SECONDS + 1
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DISCONNECT
        assert journal.cancellation.reason == "the replica that took the request has ended"


async def test_retry_gets_status_503_if_the_storage_is_unavailable_and_succeeds_later(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        members.journals["a"].may_go_on.set()
        question = await parked(one, "linger", name="a")
        two.ways.are_cut = True
        answer = await two.call("linger", {"name": "a"}, before=question, answers=accepted(question))
        assert answer.status == 503
        assert answer.headers["retry-after"]
        assert answer.code == -31000
        assert "cannot be reached now; try again later" in answer.json["error"]["message"]
        assert text_of((await two.call("echo", {"text": "hi"})).json) == "hi"
        two.ways.are_cut = False
        answer = await two.call("linger", {"name": "a"}, before=question, answers=accepted(question))
        assert text_of(answer.json) == "done by 0"


async def test_forwarded_retry_succeeds_despite_a_short_storage_outage(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a")
        connection = await two.begin("linger", {"name": "a"}, before=question, answers=accepted(question))
        await journal.resumed.wait()
        one.ways.are_cut = two.ways.are_cut = True
        journal.may_go_on.set()
        await trio.sleep(2.5)
        one.ways.are_cut = two.ways.are_cut = False
        answer = await connection.answer()
        assert text_of(answer.json) == "done by 0"


async def test_forwarded_retry_ends_on_both_replicas_if_a_storage_outage_exceeds_the_replica_lease(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        question = await parked(one, "linger", name="a")
        connection = await two.begin("linger", {"name": "a"}, before=question, answers=accepted(question))
        await journal.resumed.wait()
        one.ways.are_cut = two.ways.are_cut = True
        answer = await connection.answer()
        assert answer.code == -31000
        await journal.ended.wait()
        assert trio.current_time() <= LEASE_SECONDS + 3
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DISCONNECT


async def test_replica_that_shuts_down_first_finishes_forwarded_retries_and_handlers_that_await_input(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools, drain_timeout=30) as members:
        one, two = members
        running, waiting = await parked(one, "linger", name="a"), await parked(one, "greet", name="b")
        connection = await two.begin("linger", {"name": "a"}, before=running, answers=accepted(running))
        await members.journals["a"].resumed.wait()
        one.ends.set()
        await trio.sleep(10)
        answer = await two.call("greet", {"name": "b"}, before=waiting, answers=accepted(waiting, name="Bob"))
        assert text_of(messages_in(answer)[-1]) == "hello Bob from 0"
        members.journals["a"].may_go_on.set()
        assert text_of((await connection.answer()).json) == "done by 0"
        await one.over.wait()
        assert trio.current_time() < 11


async def test_forwarded_retry_that_takes_longer_than_the_drain_timeout_fails_with_an_error(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools, drain_timeout=3) as members:
        one, two = members
        journal = members.journals["a"]
        running, waiting = await parked(one, "linger", name="a"), await parked(one, "greet", name="b")
        connection = await two.begin("linger", {"name": "a"}, before=running, answers=accepted(running))
        await journal.resumed.wait()
        one.ends.set()
        answer = await connection.answer()
        assert answer.code == -31003
        assert 3 <= trio.current_time() <= 3.1
        await one.over.wait()
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.SHUTDOWN
        answer = await two.call("greet", {"name": "b"}, before=waiting, answers=accepted(waiting, name="Bob"))
        assert answer.code == -31003


async def test_large_reply_to_a_forwarded_retry_blocks_the_handler_until_the_client_reads(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        journal = members.journals["a"]
        arguments = {"name": "a", "count": 30, "size": 300_000}
        question = await parked(one, "flood", **arguments)
        connection = await two.endpoint.connect(lockstep=True)
        headers, body = modern("tools/call", call("flood", arguments, before=question, answers=accepted(question)))
        await connection.stream.send_all(request_bytes("POST", {**headers}, body))
        connection.expect()
        await trio.sleep(30)
        stuck_at = journal.seen["told"]
        assert stuck_at < 10  # back-pressure reaches the handler
        assert not journal.ended.is_set()
        assert (await connection.head()).headers["content-type"] == "text/event-stream"
        *told, reply = await rest_of(connection)
        assert [each["params"]["data"]["told"] for each in told] == list(range(30))
        assert text_of(reply) == "y" * 300_000


async def test_request_state_for_other_arguments_is_rejected_before_forwarding(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as (one, two):
        question = await parked(one, "greet", name="a")
        answer = await two.call("greet", {"name": "b"}, before=question, answers=accepted(question, name="Ada"))
        assert answer.code == -32602
        assert not two.ways.uses["courier.send"]


async def ask_as(member: Member, token: str, params: dict[str, Any]) -> Answer:
    return await member.endpoint.modern("tools/call", params, Authorization=f"Bearer {token}")


def guarded(extra: dict[str, Any]) -> Callable[[int], Protected]:
    async def about(_: Principal, __: Mapping[str, str]) -> dict[str, Any]:
        return extra

    return lambda _: protected(issued(), on_authenticated=about)


async def test_handler_sees_the_principal_of_a_forwarded_retry(autojump_clock: MockClock) -> None:
    async with fleet(add_tools, auth=guarded({"plan": "gold"})) as (one, two):
        question = question_in(await ask_as(one, "alice-1", call("who")))
        answer = await ask_as(two, "alice-2", call("who", before=question, answers=accepted(question)))
        assert answer.json["result"]["structuredContent"] == {
            "tokens": ["alice-1", "alice-2"],
            "scopes": ["read", "write"],
            "claims": {},
            "extra": {"plan": "gold"},
            "client": "alice's client",
            "at": 0,
        }


async def test_retry_of_another_principal_is_rejected_without_forwarding(autojump_clock: MockClock) -> None:
    async with fleet(add_tools, auth=guarded({})) as (one, two):
        question = question_in(await ask_as(one, "alice-1", call("who")))
        answer = await ask_as(two, "bob-1", call("who", before=question, answers=accepted(question)))
        assert answer.code == -32602
        assert not two.ways.uses["courier.send"]
        answer = await ask_as(two, "alice-1", call("who", before=question, answers=accepted(question)))
        assert answer.json["result"]["structuredContent"]["at"] == 0


@pytest.mark.parametrize("principal", [None, PrincipalId(ISSUER, "bob")], ids=["nobody", "another"])
async def test_replica_of_the_handler_checks_the_principal_of_a_forwarded_retry(
    principal: PrincipalId | None, autojump_clock: MockClock
) -> None:
    """Whatever a taker has checked, or not."""
    async with fleet(add_tools, auth=guarded({})) as (one, two):
        question = question_in(await ask_as(one, "alice-1", call("who")))
        assert one.running.fleet is not None
        assert two.running.fleet is not None
        lines = list[LinesMessage]()
        seal = SealedMessenger(two.fleet.messenger, two.running.cipher)

        def read(letter: ReplicaMessage) -> None:
            batch = seal.open(LINES, letter, LinesMessage)
            assert batch is not None
            lines.append(batch)
            letter.ack()

        two.fleet.messenger.register(LINES, read)
        handle = two.running.cipher.open(question["requestState"]).handle
        _, body = modern("tools/call", call("who", before=question, answers=accepted(question)))
        params = json.dumps(body["params"]).encode()
        letter = RetryMessage(9, handle, 1, "tools/call", params, 100, principal, None, None)
        await two.fleet.messenger.send(one.id, RETRY, seal.seal(RETRY, one.id, letter), patience=1)
        await wait_all_tasks_blocked()
        assert json.loads(lines[0].lines)["error"]["code"] == -32602
        assert lines[0].is_last
        assert one.server.statistics().parked == 1


async def test_message_between_replicas_encrypted_with_different_secrets_is_refused(autojump_clock: MockClock) -> None:
    async with fleet(add_tools) as (one, two):
        assert two.running.fleet is not None
        stranger = SealedMessenger(two.fleet.messenger, StateCipher("fleet"))
        for content in (b"", b"nonsense", stranger.seal(CANCEL, one.id, CancelMessage(1, False, "no"))):
            with pytest.raises(MessageRefused, match="other secrets"):
                await two.fleet.messenger.send(one.id, CANCEL, content, patience=1)
        mine = SealedMessenger(two.fleet.messenger, two.running.cipher)
        with pytest.raises(MessageRefused, match="other secrets"):  # a letter of another kind
            content = mine.seal(CANCEL, one.id, CancelMessage(1, False, "no"))
            await two.fleet.messenger.send(one.id, RETRY, content, patience=1)


async def test_cancel_that_arrives_before_the_forwarded_retry_it_refers_to_is_applied(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as (one, two):
        assert two.running.fleet is not None
        question = await parked(one, "linger", name="a")
        seal = SealedMessenger(two.fleet.messenger, two.running.cipher)
        cancel = seal.seal(CANCEL, one.id, CancelMessage(1, False, "the client has left"))
        await two.fleet.messenger.send(one.id, CANCEL, cancel, patience=1)
        answer = await two.call("linger", {"name": "a"}, before=question, answers=accepted(question))
        assert answer.code == -31003
        assert "its client has left; call again" in answer.json["error"]["message"]


async def test_middleware_runs_once_for_a_handler_even_if_its_retries_arrive_at_several_replicas(
    autojump_clock: MockClock,
) -> None:
    ran = list[int]()

    def add(server: Server, members: Fleet, number: int) -> None:
        add_tools(server, members, number)

        @server.middleware("tools/call")
        async def count(request: ServerRequest, next: Next) -> Any:
            ran.append(number)
            return await next(request)

    async with fleet(add) as (one, two):
        question = await parked(one, "twice", name="a")
        given = accepted(question, name="A")
        question = question_in(await two.call("twice", {"name": "a"}, before=question, answers=given))
        answer = await two.call("twice", {"name": "a"}, before=question, answers=accepted(question, name="B"))
        assert text_of(answer.json) == "A B from 0"
        assert ran == [0]
        await two.call("echo", {"text": "hi"})
        assert ran == [0, 1]


@pytest.mark.parametrize("seed", range(5))
async def test_each_retry_is_answered_once_despite_lost_and_duplicate_messages(
    seed: int, autojump_clock: MockClock
) -> None:
    answers = dict[str, str]()
    async with fleet(add_tools, 3, drain_timeout=30) as members:
        for number, member in enumerate(members):
            member.ways.chance.seed(100 * seed + number)
            member.ways.loses, member.ways.doubles = 0.4, 0.3

        async def talk(name: str, where: list[Member]) -> None:
            first = await parked(where[0], "twice", name=name)
            given = accepted(first, name=name)
            second = question_in(await where[1].call("twice", {"name": name}, before=first, answers=given))
            given = accepted(second, name="too")
            answers[name] = text_of((await where[2].call("twice", {"name": name}, before=second, answers=given)).json)

        async with trio.open_nursery() as nursery:
            for number in range(30):
                where = [members[(number + further * (1 + number % 2)) % 3] for further in range(3)]
                nursery.start_soon(talk, str(number), where)
        assert answers == {str(number): f"{number} too from {number % 3}" for number in range(30)}
        await trio.sleep(10)
        for member in members:
            assert member.running.fleet is not None
            assert member.fleet.retries.is_idle
            assert member.server.statistics().in_flight == 0


@pytest.mark.parametrize("seed", range(10))
def test_each_call_ends_in_time_despite_random_replica_and_storage_failures(seed: int) -> None:
    """Replicas are cut off from the storage for a while, letters are lost, clients leave. Each call ends with an answer
    or a typed error, soon after its handler may go on and both of its replicas reach the storage; each handler ends,
    and nothing is left. The seed decides all of that, and the order of tasks."""
    run_in_order_of(seed, _calls_end_in_bad_weather, seed, clock=MockClock(autojump_threshold=0))


async def _calls_end_in_bad_weather(seed: int) -> None:
    chance, outcomes, longest = random.Random(seed), Counter[str](), 0.0
    async with fleet(add_tools, 3) as members:
        journals, calm_since = members.journals, [0.0] * 3
        for member in members:
            member.ways.chance.seed(chance.random())
            member.ways.loses, member.ways.doubles = 0.2, 0.2

        async def cut(number: int) -> None:
            ways = members[number].ways
            while True:
                await trio.sleep(chance.expovariate(1 / 10))
                ways.are_cut, calm_since[number] = True, math.inf
                await trio.sleep(chance.choice([0.3, 1.5, 4, 9]))
                ways.are_cut, calm_since[number] = False, trio.current_time()

        async def talk(name: str) -> None:
            nonlocal longest
            await trio.sleep(chance.random() * 60)
            one, two = chance.choices(range(3), k=2)
            question = await parked(members[one], "linger", name=name)
            delay = chance.random() * 12
            goes_on = trio.current_time() + delay
            nursery.start_soon(go_on, name, delay)
            connection = await members[two].begin("linger", {"name": name}, before=question, answers=accepted(question))
            with trio.move_on_after(chance.choice([0.01, 3, 1000])) as scope:
                answer = await connection.answer()
                longest = max(longest, trio.current_time() - max(goes_on, calm_since[one], calm_since[two]))
                reply = messages_in(answer)[-1]
                outcomes["result" if "result" in reply else str(reply["error"]["code"])] += 1
            if scope.cancelled_caught:
                outcomes["left"] += 1
            await connection.aclose()

        async def go_on(name: str, delay: float) -> None:
            await trio.sleep(delay)
            journals[name].may_go_on.set()

        async with trio.open_nursery() as faults:
            for number in range(3):
                faults.start_soon(cut, number)
            async with trio.open_nursery() as nursery:
                for number in range(60):
                    nursery.start_soon(talk, str(number))
            faults.cancel_scope.cancel(reason="all calls have ended")
        for member in members:
            member.ways.are_cut, member.ways.loses = False, 0.0
        await trio.sleep(2 * LEASE_SECONDS)
        assert set(outcomes) <= {"result", "left", "-31000", "-31003", "-32602"}
        assert outcomes["result"] > 3
        assert longest < LEASE_SECONDS
        for member in members:
            assert member.running.fleet is not None
            assert member.fleet.retries.is_idle
            assert member.server.statistics().in_flight == 0
            for scope in member.running.host.parking:  # the retry never came
                assert not journals[scope.request.params["arguments"]["name"]].resumed.is_set()


KEY = ProofKey.generate()


async def test_dpop_proof_accepted_by_one_replica_is_rejected_by_another_replica(autojump_clock: MockClock) -> None:
    tokens = issued()
    tokens.principals["bound"] = Principal(issuer=ISSUER, subject="carol", key_thumbprint=KEY.thumbprint)

    async with fleet(add_tools, auth=lambda _: protected(tokens, dpop="accepted", dpop_nonces=True)) as (one, two):

        async def ask(member: Member, nonce: str | None, proof: str | None = None) -> Answer:
            proof = proof or KEY.proof("POST", RESOURCE, token="bound", nonce=nonce, now=time.time())
            return await member.endpoint.modern(
                "tools/call", call("echo", {"text": "hi"}), Authorization="DPoP bound", DPoP=proof
            )

        answer = await ask(one, None)
        assert answer.status == 401
        nonce = answer.headers["dpop-nonce"]
        proof = KEY.proof("POST", RESOURCE, token="bound", nonce=nonce, now=time.time())
        assert text_of((await ask(one, None, proof)).json) == "hi"
        assert (await ask(two, None, proof)).status == 401
        assert text_of((await ask(two, nonce)).json) == "hi"
        assert two.ways.uses["replay_guard.add"] == 2
        two.ways.are_cut = True
        answer = await ask(two, nonce)
        assert answer.status == 503
        assert answer.headers["retry-after"]


@pytest.mark.parametrize("auth", [lambda _: None, guarded({})], ids=["open", "protected"])
async def test_request_without_retries_does_not_use_the_shared_storage(
    auth: Callable[[int], Protected | None], autojump_clock: MockClock
) -> None:
    """No part of the storage is used for a request that shares nothing, nor for the first round of one that asks."""
    async with fleet(add_tools, auth=auth) as members:
        one = members[0]

        async def ask(method: str, params: dict[str, Any] | None = None) -> Answer:
            return await one.endpoint.modern(method, params, Authorization="Bearer alice-1")

        await ask("tools/list")  # the token is verified once
        await wait_all_tasks_blocked()
        began, before = trio.current_time(), Counter(one.ways.uses)
        assert text_of((await ask("tools/call", call("echo", {"text": "hi"}))).json) == "hi"
        assert (await ask("tools/list")).json["result"]["tools"]
        assert (await ask("server/discover")).json["result"]["supportedVersions"]
        assert (await ask("tools/call", call("nothing"))).code == -32602
        question_in(await ask("tools/call", call("greet", {"name": "a"})))
        first = question_in(await ask("tools/call", call("replayed", {"name": "b"})))
        given = accepted(first, name="Ada")
        answer = await ask("tools/call", call("replayed", {"name": "b"}, before=first, answers=given))
        assert text_of(answer.json) == "hello Ada from 0"
        await wait_all_tasks_blocked()
        assert trio.current_time() == began
        assert one.ways.uses == before


async def test_forwarded_retries_that_have_ended_are_no_longer_counted_and_send_no_messages(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools) as members:
        one, two = members
        for number in range(5):
            name = str(number)
            question = await parked(one, "linger", name=name)
            connection = await two.begin("linger", {"name": name}, before=question, answers=accepted(question))
            await members.journals[name].resumed.wait()
            if number % 2:
                await connection.aclose()
            else:
                members.journals[name].may_go_on.set()
                await connection.answer()
        await trio.sleep(5)
        for member in members:
            statistics = member.server.statistics()
            assert (statistics.in_flight, statistics.queued, statistics.parked) == (0, 0, 0)
            uses = member.ways.uses["courier.send"]
            await trio.sleep(60)
            assert member.ways.uses["courier.send"] == uses  # nobody asks after calls that have ended


def test_repr_of_a_retry_message_between_replicas_hides_secrets() -> None:
    auth = ForwardedAuth("sesame", None, "ann", None, [], b"{}", None, None)
    headers = {"authorization": "Bearer sesame"}
    letter = RetryMessage(1, b"sesame", 2, "tools/call", b'"sesame"', 9, None, auth, headers)
    assert "ann" in repr(letter)
    assert "sesame" not in repr(letter)
