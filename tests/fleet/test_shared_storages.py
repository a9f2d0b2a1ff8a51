"""Carried retries and shared changes by the storages that processes share: a Redis, and a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.fleet.fault_proxy import open_proxy
from tests.fleet.fleet import FORM, Fleet, accepted, fleet, question_in
from tests.fleet.redis_server import RedisServer, redis_of_process, redis_server, redis_url  # noqa: F401 - fixtures
from tests.fleet.test_shared_changes import Listener
from tests.patience import PATIENCE
from tests.serving.http.raw import message
from tests.serving.http.scenes import messages_in, text_of

from trio_mcp import CancelCause, RequestContext, Server
from trio_mcp.fleet import messenger as letters
from trio_mcp.fleet.sessions.state import decode_state
from trio_mcp.fleet.storage.redis.link import Link
from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.server.sharing import SharedStorage


@pytest.fixture(params=["redis", "sqlite"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    if request.param == "sqlite":
        return SQLiteStorage(tmp_path / "shared.db")
    return RedisStorage(request.getfixturevalue("redis_url"), limit=PATIENCE)


def add_tools(server: Server, members: Fleet, number: int) -> None:
    @server.tool
    async def talk(name: str, size: int, ctx: RequestContext) -> str:
        journal = members.journals[name]
        try:
            answer = await ctx.elicit("Who?", FORM)
            assert answer.content is not None
            ctx.progress(1)
            again = await ctx.elicit("And?", FORM)
            assert again.content is not None
            journal.resumed.set()
            if name == "stays":
                await trio.sleep_forever()
            return f"{answer.content['name']} {again.content['name']} from {number} {'x' * size}"
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()

    @server.resource("a:1")
    async def one() -> str:
        return "one"


async def test_retry_is_forwarded_to_the_replica_of_its_handler_and_the_reply_is_returned(
    shared: SharedStorage,
) -> None:
    async with fleet(add_tools, 3, shared=shared) as (one, two, three):
        arguments: dict[str, Any] = {"name": "a", "size": 1_000_000}
        question = question_in(await one.call("talk", arguments))
        given, meta = accepted(question, name="Ada"), {"progressToken": 1}
        answer = await two.call("talk", arguments, before=question, answers=given, meta=meta)
        told, reply = messages_in(answer)
        assert told["method"] == "notifications/progress"
        question = question_in(reply)
        answer = await three.call("talk", arguments, before=question, answers=accepted(question, name="Bob"))
        assert text_of(answer.json) == f"Ada Bob from 0 {'x' * 1_000_000}"


async def test_client_that_disconnects_cancels_the_handler_that_runs_at_another_replica(shared: SharedStorage) -> None:
    async with fleet(add_tools, shared=shared) as members:
        one, two = members
        arguments: dict[str, Any] = {"name": "stays", "size": 1}
        question = question_in(await one.call("talk", arguments))
        question = question_in(await one.call("talk", arguments, before=question, answers=accepted(question, name="A")))
        journal = members.journals["stays"]
        connection = await two.begin("talk", arguments, before=question, answers=accepted(question, name="B"))
        with trio.fail_after(PATIENCE):
            await journal.resumed.wait()
            await connection.aclose()
            await journal.ended.wait()
        assert journal.cancellation is not None
        assert journal.cancellation.cause is CancelCause.DISCONNECT


async def test_retries_are_forwarded_although_redis_subscriptions_are_lost_repeatedly(
    redis_server: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the lists of the readers: no letter is sent twice here."""
    monkeypatch.setattr(letters, "_FIRST_RETRY_DELAY", 10 * PATIENCE)
    monkeypatch.setattr(letters, "_MAX_RETRY_DELAY", 10 * PATIENCE)
    async with fleet(add_tools, shared=RedisStorage(redis_server.url, limit=PATIENCE)) as (one, two):
        for number in range(8):
            arguments: dict[str, Any] = {"name": f"cut {number}", "size": 20_000}
            with trio.fail_after(PATIENCE):
                question = question_in(await one.call("talk", arguments))
                for name in ("Ada", "Bob"):
                    assert redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub") >= 0
                    answer = await two.call("talk", arguments, before=question, answers=accepted(question, name=name))
                    question = question_in(answer) if name == "Ada" else question
            assert text_of(answer.json).startswith("Ada Bob from 0")


async def test_cancel_of_an_unknown_request_sends_few_redis_commands(redis_server: RedisServer) -> None:  # noqa: F811
    def count() -> int:
        found = redis_server.info("commandstats")
        names = {f"cmdstat_{each}" for each in ("info", "ping", "set")}
        return sum(int(each.split(",")[0].removeprefix("calls=")) for name, each in found.items() if name not in names)

    async with fleet(add_tools, 3, shared=RedisStorage(redis_server.url, limit=PATIENCE)) as members:
        session = await members[0].endpoint.initialize()
        for number, member in enumerate(members):
            assert (await member.endpoint.ask("POST", session, message("ping", request_id=number))).status == 200
        costs: list[int] = []
        for number, member in enumerate([members[0]] * 6 + [members[1]] * 3):
            await trio.sleep(0.1)  # the hint of the one before has come
            before = count()
            canceled = message("notifications/cancelled", {"requestId": f"nobody {number}"})
            assert (await member.endpoint.ask("POST", session, canceled)).status == 202
            costs.append(count() - before)
        assert sorted(costs)[len(costs) // 2] <= 6, costs
        assert sum(costs) <= 10 * len(costs), costs


async def test_replica_does_not_overwrite_a_session_change_of_another_replica(
    redis_server: RedisServer,  # noqa: F811
) -> None:
    async with fleet(add_tools, shared=RedisStorage(redis_server.url, limit=PATIENCE)) as (one, two):
        session = await one.endpoint.initialize()
        for turn in range(5):
            for member in (one, two):
                level = message("logging/setLevel", {"level": ("debug", "error")[turn % 2]}, f"{turn} {member.id}")
                assert (await member.endpoint.ask("POST", session, level)).json["result"] == {}
            assert one.storage.replica is not None
            stored = await one.storage.replica.sessions.read(session["Mcp-Session-Id"] or "", idle_ms=10_000)
            assert stored is not None
            assert decode_state(stored.state).log_level == ("debug", "error")[turn % 2]


def add_large(server: Server, members: Fleet, number: int) -> None:
    @server.tool
    async def large(size: int, ctx: RequestContext) -> str:
        await ctx.elicit("Who?", FORM)
        return "x" * size


async def carried(members: Fleet, count: int, size: int) -> list[int]:
    """Return the lengths of the results of ``count`` retries at once, all of which are carried."""
    one, two = members
    found: list[int] = []

    async def call_large(question: dict[str, Any]) -> None:
        arguments = {"size": size}
        answer = await two.call("large", arguments, before=question, answers=accepted(question, name="A"))
        found.append(len(text_of(answer.json)))

    questions = [question_in(await one.call("large", {"size": size})) for _ in range(count)]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for each in questions:
                nursery.start_soon(call_large, each)
    return found


@pytest.mark.parametrize(("count", "size"), [(60, 10**6), (1, 30 * 10**6)])
async def test_large_results_are_forwarded_in_chunks_of_limited_size(
    redis_server: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    size: int,
) -> None:
    """A few pieces are sent at a time, and heartbeats on connections that carry no pieces."""
    monkeypatch.setattr(letters, "LEASE_SECONDS", PATIENCE)  # a busy machine may delay heartbeats too
    on_their_way: set[int] = set()
    beating: set[Link] = set()
    carrying: set[Link] = set()
    most, longest = 0, 0
    send = Link._exchange

    async def watched(link: Link, commands: Sequence[Sequence[Any]], deadline: float) -> Any:
        nonlocal most, longest
        length = sum(len(word) for command in commands for word in command if isinstance(word, bytes))
        longest = max(longest, length)
        if commands[0][0] == b"SET" and b":alive}:" in commands[0][1]:
            beating.add(link)
        if length > 2**16:
            carrying.add(link)
            on_their_way.add(id(commands))
            most = max(most, len(on_their_way))
        try:
            return await send(link, commands, deadline)
        finally:
            on_their_way.discard(id(commands))

    monkeypatch.setattr(Link, "_exchange", watched)
    bounds = {"max_message_bytes": 2**26, "max_in_flight": 200}
    async with fleet(add_large, shared=RedisStorage(redis_server.url, limit=PATIENCE), **bounds) as members:
        assert await carried(members, count, size) == [size] * count
        assert longest < 300_000
        assert most <= 4
        assert beating
        assert carrying
        assert not beating & carrying


async def test_replica_is_not_considered_dead_while_large_results_block_a_slow_redis_connection(
    redis_server: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all pieces at once, each command would take longer than its limit."""
    monkeypatch.setattr(letters, "LEASE_SECONDS", PATIENCE)  # what a busy machine delays is no dead replica
    async with (
        open_proxy(redis_server.port) as proxy,
        fleet(add_large, shared=RedisStorage(proxy.url, limit=3.0)) as members,
    ):
        proxy.pace = 0.02
        assert await carried(members, 14, 10**6) == [10**6] * 14
        for member in members:
            assert await member.storage.replica.courier.heartbeat(lease_ms=5000)  # as all the time before


async def test_retry_of_a_call_whose_handler_ran_at_a_stopped_replica_fails_with_an_error(
    shared: SharedStorage,
) -> None:
    async with fleet(add_tools, shared=shared) as (one, two):
        arguments: dict[str, Any] = {"name": "a", "size": 1}
        question = question_in(await one.call("talk", arguments))
        one.scope.cancel(reason="the replica ends at once")
        with trio.fail_after(PATIENCE):
            await one.over.wait()
            answer = await two.call("talk", arguments, before=question, answers=accepted(question, name="A"))
        assert answer.code == -31003


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda server: server._observers.list_changed("notifications/tools/list_changed"), "tools"),
        (lambda server: server.resource_updated("a:1"), "a:1"),
    ],
    ids=["list", "resource"],
)
async def test_clients_of_all_replicas_are_notified_of_list_changes_and_resource_updates(
    shared: SharedStorage, change: Callable[[Server], None], name: str
) -> None:
    async with fleet(add_tools, 3, shared=shared) as members:
        asked = {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
        listeners = [await Listener.at(member, **asked) for member in members]
        change(members[1].server)
        with trio.fail_after(PATIENCE):
            for listener in listeners:
                assert await listener.next() == name
