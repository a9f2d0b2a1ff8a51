"""The sessions of replicas are shared by caller as those of one process are: see `test_shares`."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.fleet.redis_server import redis_of_process, redis_server, redis_url  # noqa: F401 - fixtures
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.patience import PATIENCE
from tests.serving.http.protection import ISSUER, Tokens, protected
from tests.serving.http.raw import BASE, INITIALIZE, Connection, message, served
from tests.serving.http.scenes import Scene, call, messages_in
from tests.serving.http.test_shares import Addresses, Party
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Limits, MemoryStorage, serve_http
from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.server.sharing import SharedStorage

SECRET = b"of the author" * 3


@asynccontextmanager
async def replicas(
    secrets: list[bytes] | None = None, **limits: Any
) -> AsyncGenerator[tuple[FleetScene, FleetEndpoint, Callable[[str], Party]]]:
    """Three replicas in turn, and a function that makes the caller of a name."""
    tokens, scene = Tokens(), FleetScene(**({} if secrets is None else {"secrets": secrets}))
    tokens.may_answer.set()
    async with replicated(scene.server, auth=protected(tokens), **limits) as endpoint:
        yield scene, endpoint, lambda name: Party(endpoint, tokens, name)


# The session that ends for another


async def test_session_that_is_evicted_in_favour_of_another_caller_ends_at_all_replicas(
    autojump_clock: MockClock,
) -> None:
    async with replicas(max_sessions=4) as (scene, endpoint, party):
        alice = party("alice")
        ends, lasts = await alice.open_all()
        names = ["one", "two", "three"]
        posts = [await endpoint.post(ends, call("wait", n, name=name, speaks=True)) for n, name in enumerate(names)]
        for name in names:
            await scene[name].started.wait()
        listening = await endpoint.get(ends)
        await listening.head()
        await trio.sleep(6)
        for _ in range(3):
            assert await alice.is_there(lasts)
        for name in ("bob", "carol"):
            assert len(await party(name).open_all()) == 1
        kept = endpoint.memory.kept
        assert len(kept.events._logs) == 2
        assert isinstance(await party("dave").open(), dict)
        for name, post in zip(names, posts, strict=True):
            await scene[name].ended.wait()
            cancellation = scene[name].cancellation
            assert cancellation is not None
            assert cancellation.cause is CancelCause.DISCONNECT
            assert [each["method"] for each in messages_in(await post.answer())] == ["notifications/message"]
        await wait_all_tasks_blocked()
        assert not len(kept.events._logs)  # its events are not kept for long
        assert [await alice.is_there(each) for each in (ends, lasts) * 3] == [False, True] * 3
        await listening.aclose()


async def test_session_counts_as_used_after_its_first_request_even_without_an_initialized_notification(
    autojump_clock: MockClock,
) -> None:
    """At the replica that has opened it, where a call needs nothing from the storage."""
    async with replicas(max_sessions=4) as (_, endpoint, party):
        alice, replica = party("alice"), endpoint.replicas[0]
        sessions = list[dict[str, str | None]]()
        for _ in range(2):
            headers = alice.headers()
            answer = await replica.ask("POST", headers, INITIALIZE)
            sessions.append({**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"]})
        assert (await replica.ask("POST", sessions[0], message("ping", request_id=1))).status == 200
        for name in ("bob", "carol", "dave"):
            assert isinstance(await party(name).open(), dict)
        assert [await alice.is_there(each) for each in sessions] == [True, False]


async def test_concurrent_session_openings_respect_the_session_limit_of_each_caller(autojump_clock: MockClock) -> None:
    async with replicas(max_sessions=16) as (_, endpoint, party):
        alice, opened = party("alice"), list[dict[str, str | None]]()

        async def open_one(who: Party) -> None:
            headers = who.headers()
            answer = await endpoint.ask("POST", headers, INITIALIZE)
            assert answer.status in (200, 503)
            if answer.status == 200:
                session = {**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
                used = await endpoint.ask("POST", session, message("notifications/initialized"))
                assert used.status in (202, 404)  # where another one came first, and the caller has its share
                if used.status == 202:
                    opened.append(session)

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(open_one, alice)
        mine = [*opened]
        assert [await alice.is_there(each) for each in mine] == [True] * 8
        opened.clear()
        async with trio.open_nursery() as nursery:
            for number in range(14):
                nursery.start_soon(open_one, party(f"newcomer-{number}"))
        assert [await alice.is_there(each) for each in opened] == [True] * len(opened)
        assert sum([await alice.is_there(each) for each in mine]) + len(opened) == 16


async def test_shared_storage_contains_no_names_of_callers_in_plain_text(autojump_clock: MockClock) -> None:
    """With and without secrets, one name stands for one caller at all replicas, and for no other server's."""
    names = list[set[bytes]]()
    for secrets in (None, [SECRET], [SECRET], [SECRET[::-1], SECRET]):
        async with replicas(secrets, max_sessions=20) as (_, endpoint, party):
            for name in ("alice", "bob"):
                for _ in range(3):
                    assert isinstance(await party(name).open(), dict)
            held = endpoint.memory.kept.sessions._sessions.held
            assert [len(sessions) for sessions in held.values()] == [3, 3]
            names.append(set(held))
            assert not [each for each in held if b"alice" in each or ISSUER.encode() in each]
    assert names[1] == names[2]
    assert not names[1] & names[0]
    assert not names[1] & names[3]


# Callers without a token


@asynccontextmanager
async def at_two_ports(shared: SharedStorage, **limits: Any) -> AsyncGenerator[list[Addresses]]:
    """Two replicas, and connections to each from several addresses."""
    bounds = Limits(**limits)
    async with (
        served(Scene().server, limits=bounds, shared=shared) as one,
        served(Scene().server, limits=bounds, shared=shared) as two,
    ):
        both = [Addresses(each.port) for each in (one, two)]
        try:
            yield both
        finally:
            for connection in [each for addresses in both for each in addresses.opened]:
                await connection.aclose()


async def test_one_client_address_gets_half_of_the_sessions_across_replicas() -> None:
    async with at_two_ports(MemoryStorage(), max_sessions=8) as both:
        assert [await both[n % 2].opens("127.0.0.1") for n in range(6)] == [True] * 4 + [False] * 2
        assert [await both[n % 2].opens("127.0.0.2") for n in range(3)] == [True] * 2 + [False]
        assert [await both[n % 2].opens(f"127.0.0.{3 + n}") for n in range(4)] == [True] * 4


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the process at the other end is unknown here")
async def test_one_process_connected_over_unix_sockets_gets_half_of_the_sessions_across_replicas(
    tmp_path: Path,
) -> None:
    storage, paths, statuses = MemoryStorage(), [tmp_path / "one", tmp_path / "two"], list[int]()
    async with trio.open_nursery() as nursery:
        for path in paths:
            serve = partial(serve_http, unix=path, allowed_hosts="*", limits=Limits(max_sessions=8), shared=storage)
            await nursery.start(serve, Scene().server)
        for number in range(6):
            connection = Connection(await trio.open_unix_socket(str(paths[number % 2])))
            answer = await connection.ask("POST", {**BASE}, INITIALIZE)
            statuses.append(answer.status)
            if answer.status == 200:
                session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
                used = await connection.ask("POST", session, message("notifications/initialized"))
                assert used.status == 202
            await connection.aclose()
        nursery.cancel_scope.cancel(reason="the test has what it needs")
    assert statuses == [200] * 4 + [503] * 2


async def test_each_in_memory_connection_counts_as_a_separate_caller(autojump_clock: MockClock) -> None:
    """As they are in one process: the session of a connection is its only one, and none ends for another."""
    async with replicated(FleetScene().server, max_sessions=2) as endpoint:
        sessions = [await endpoint.initialize() for _ in range(2)]
        assert (await endpoint.ask("POST", {**BASE}, INITIALIZE)).status == 503
        connection = await endpoint.replicas[0].connect()
        assert (await endpoint.ask("DELETE", sessions[0])).status == 204
        for _ in range(3):  # in the place of the one before, which is not used
            assert (await connection.ask("POST", {**BASE}, INITIALIZE)).status == 200
        assert (await endpoint.ask("POST", sessions[1], message("ping", request_id=1))).status == 200


# By the storages of processes


@pytest.fixture(params=["redis", "sqlite"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStorage:
    if request.param == "sqlite":
        return SQLiteStorage(tmp_path / "shared.db", poll_interval=0.01)
    return RedisStorage(request.getfixturevalue("redis_url"), limit=PATIENCE)


async def test_new_caller_replaces_the_longest_idle_session_in_every_kind_of_storage(shared: SharedStorage) -> None:
    async with at_two_ports(shared, max_sessions=8) as both:
        opened = list[Any]()
        while isinstance(session := await both[len(opened) % 2].open("127.0.0.1"), dict):
            opened.append(session)
        assert len(opened) == 4
        assert [await both[1].opens(f"127.0.0.{2 + number}") for number in (0, 0, 1, 2, 3)] == [True] * 5
        connections = [await each.connect("127.0.0.1") for each in both]
        with trio.fail_after(PATIENCE):
            for connection in connections:
                statuses = list[int]()
                while statuses != [404, 200, 200, 200]:  # a hint is on its way
                    statuses = [
                        (await connection.ask("POST", each, message("ping", request_id=1))).status for each in opened
                    ]
