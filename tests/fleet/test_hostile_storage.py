"""Bytes of a stranger in the shared storage: replicas go on serving, whatever stands in a key or comes on a channel."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from tests.fleet.fault_proxy import open_proxy
from tests.fleet.fleet import FORM, Fleet, accepted, fleet, question_in
from tests.fleet.redis_server import RedisServer, redis_of_process, redis_server  # noqa: F401 - fixtures
from tests.patience import PATIENCE
from tests.serving.http.raw import BASE, INITIALIZE, message
from tests.serving.http.scenes import call, text_of

from trio_mcp import RequestContext, Server
from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.server.sharing import SharedStorage

TASKS = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
HOSTILE = [
    b"",
    b"\xff\xfe\x00",
    b"\xa1\xff",  # text that is no UTF-8, packed
    b"\x91" * 100_000,  # arrays in arrays
    b"[" * 100_000,
    b"\xdd\xff\xff\xff\xff",  # an array of four billion
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time out of range
    b"1e999",
    b"-1",
    b"9" * 400,
    b"nan",
    b"null",
    b'{"sent":"x"}',
    "\ud800".encode(errors="surrogatepass"),
    bytes(range(256)),
    msgspec.msgpack.encode([1, 2, 3]),
    msgspec.msgpack.encode({"form": 1, "opening": b"\xff"}),
]


def add_tools(server: Server, members: Fleet, number: int) -> None:
    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def talk(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Who?", FORM)
        return str((answer.content or {})["name"])

    @server.tool(task="required", on_restart="again")
    async def work(ctx: RequestContext) -> str:
        await trio.sleep_forever()
        return ""

    @server.tool
    async def slow(ctx: RequestContext) -> str:
        ctx.progress(1)
        await trio.sleep(0.3)
        return "slow"

    @server.resource("a:1")
    async def one() -> str:
        return "one"


class Traceless(logging.Handler):
    """Collects the records with a traceback: a stranger's bytes are not a defect of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.exc_text:
            self.found.append(self.format(record))


def mutated(chance: random.Random, was: bytes) -> bytes:
    """Return other bytes: hostile ones, random ones, or ``was`` with a few changes."""
    match chance.randrange(4):
        case 0:
            return chance.choice(HOSTILE)
        case 1:
            return chance.randbytes(chance.randrange(40))
        case _:
            changed = bytearray(was[:10_000] or b"x")
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed[: chance.choice([len(changed), chance.randrange(len(changed) + 1)])])


class Scene:
    """Two replicas with all that they share: a session with streams, a task, changes, and a call that is parked."""

    def __init__(self, members: Fleet) -> None:
        self.members = members

    async def set_up(self) -> None:
        one, two = self.members
        self.session = await one.endpoint.initialize()
        self.own = await one.endpoint.get(self.session)
        await self.own.head()
        await two.endpoint.ask("POST", self.session, message("resources/subscribe", {"uri": "a:1"}, 1))
        answer = await one.endpoint.ask("POST", self.session, call("slow", 2))
        assert answer.events
        self.cursor = next(event.id for event in answer.events if event.id)
        answer = await one.call("work", meta=TASKS)
        while "error" in answer.json:  # on a busy machine, Redis may not answer within the limit: try again
            answer = await one.call("work", meta=TASKS)
        self.task = answer.json["result"]["taskId"]
        one.server.resource_updated("a:1")

    async def use(self) -> None:
        """Use all that is shared. Each request is answered, and none with a defect."""
        number = iter(range(100, 200))
        for member in self.members:
            answer = await member.call("echo", {"text": "x"})
            assert text_of(answer.json) == "x"
            answer = await member.endpoint.ask("POST", self.session, call("echo", next(number), text="x"))
            assert answer.status in (200, 404, 503), answer
            answer = await member.endpoint.ask("POST", self.session, message("logging/setLevel", {"level": "info"}, 1))
            assert answer.status in (200, 404, 503), answer
            stream = await member.endpoint.get(self.session, self.cursor)
            assert (await stream.head()).status in (200, 204, 400, 404, 503)
            await stream.aclose()
            answer = await member.endpoint.modern("tasks/get", {"taskId": self.task, "_meta": TASKS})
            assert answer.json.get("error", {}).get("code") in (None, -32602, -32603, -31000), answer
            member.server.resource_updated("a:1")

    async def use_anew(self) -> None:
        """See that all works together, for who comes now."""
        one, two = self.members
        session = await one.endpoint.initialize()
        answer = await two.endpoint.ask("POST", session, call("echo", 1, text="x"))
        assert text_of(answer.reply) == "x"
        question = question_in(await one.call("talk"))
        answer = await two.call("talk", before=question, answers=accepted(question, name="Ada"))
        assert text_of(answer.json) == "Ada"
        answer = await one.call("work", meta=TASKS)
        task = answer.json["result"]["taskId"]
        answer = await two.endpoint.modern("tasks/get", {"taskId": task, "_meta": TASKS})
        assert answer.json["result"]["status"] == "working"


@asynccontextmanager
async def scene(shared: SharedStorage) -> AsyncGenerator[Scene]:
    traceless, logger = Traceless(), logging.getLogger("trio_mcp")
    logger.addHandler(traceless)
    try:
        async with fleet(add_tools, shared=shared) as members:
            found = Scene(members)
            with trio.fail_after(PATIENCE):
                await found.set_up()
            yield found
            assert not any(member.over.is_set() for member in members)
    finally:
        logger.removeHandler(traceless)
    assert traceless.found == []


def overwrite(server: RedisServer, chance: random.Random, key: bytes) -> None:
    """Change something in a key, or put another kind of value there."""
    kind = server.ask("TYPE", key)
    try:
        match kind:
            case b"hash":
                field = chance.choice(server.ask("HKEYS", key))
                if chance.random() < 0.2:
                    server.ask("HDEL", key, field)
                else:
                    server.ask("HSET", key, field, mutated(chance, server.ask("HGET", key, field)))
            case b"zset":
                member = chance.choice(server.ask("ZRANGE", key, 0, -1))
                score = chance.choice(["0", "1", "inf", "-inf", "1e300", "1.5"])
                server.ask("ZADD", key, score, mutated(chance, member) if chance.random() < 0.7 else member)
            case b"string":
                server.ask("SET", key, mutated(chance, server.ask("GET", key)))
            case _:
                pass
        if chance.random() < 0.1:
            server.ask("DEL", key)
            chance.choice(
                [
                    lambda: server.ask("SET", key, chance.choice(HOSTILE)),
                    lambda: server.ask("HSET", key, chance.choice(HOSTILE), chance.choice(HOSTILE)),
                    lambda: server.ask("ZADD", key, 1, chance.choice(HOSTILE)),
                ]
            )()
    except IndexError:  # the key has gone meanwhile
        pass


def files(file: Path) -> list[Path]:
    return [each for each in file.parent.glob(f"{file.name}*") if not each.name.endswith(("-wal", "-shm"))]


def overwrite_rows(file: Path, chance: random.Random) -> None:
    """Put values of any type into some columns of each table."""
    values = [None, 0, -1, 2**62, 1.5, "text", *HOSTILE]
    connection = sqlite3.connect(file, timeout=PATIENCE, isolation_level=None)
    try:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]
            for column in columns:
                if (table, column) == ("secret", "secret") or chance.random() < 0.5:
                    continue
                value = chance.choice(values)
                rows = f"SELECT rowid FROM {table} LIMIT 2"
                with suppress(sqlite3.Error):  # a table without row ids, a null, or a value that is there
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid IN ({rows})", (value,))
    finally:
        connection.close()


async def messages_of(server: RedisServer, use: Any) -> list[tuple[bytes, bytes]]:
    """Return what is published while ``use`` runs, by channel."""
    found: list[tuple[bytes, bytes]] = []
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream, trio.open_nursery() as nursery:
        await stream.send_all(b"PSUBSCRIBE *\r\n")

        async def read() -> None:
            received = b""
            while data := await stream.receive_some():
                received += data
                while len(parts := received.split(b"\r\n", 9)) == 10 and received.startswith(b"*4\r\n$8\r\npmessage"):
                    head, size = b"\r\n".join(parts[:8]) + b"\r\n", int(parts[7][1:])
                    if len(received) < len(head) + size + 2:
                        break
                    found.append((parts[6], received[len(head) : len(head) + size]))
                    received = received[len(head) + size + 2 :]
                if received.startswith(b"*3\r\n$10\r\npsubscribe") and received.count(b"\r\n") >= 6:
                    received = received.split(b"\r\n", 6)[6]

        nursery.start_soon(read)
        await use()
        nursery.cancel_scope.cancel(reason="the test has what it needs")
    return found


async def test_sec_replica_does_not_crash_after_malicious_messages_on_any_redis_channel(
    redis_server: RedisServer,  # noqa: F811
) -> None:
    async with scene(RedisStorage(redis_server.url, limit=PATIENCE)) as found:
        with trio.fail_after(PATIENCE):
            sent = await messages_of(redis_server, found.use_anew)
            assert {data[:1] for _, data in sent} >= {b"t", b"s", b"c", b"w"}
        for seed in range(6):
            chance = random.Random(seed)
            for channel in redis_server.ask("PUBSUB", "CHANNELS"):
                of_channel = [data for name, data in sent if name == channel] or [b"x"]
                for _ in range(10):
                    start = chance.choice([b"", b"w", b"k", b"t", b"s", b"l", b"c", b"l3:", b"c1.1 1.2 "])
                    redis_server.ask(
                        "PUBLISH", channel, start + mutated(chance, chance.choice(of_channel)[len(start[:1]) :])
                    )
                    redis_server.ask("PUBLISH", channel, mutated(chance, chance.choice(of_channel)))
                for each in HOSTILE:
                    redis_server.ask("PUBLISH", channel, chance.choice([b"", b"w", b"k", b"c"]) + each)
            with trio.fail_after(PATIENCE):
                await found.use()
        with trio.fail_after(PATIENCE):
            await found.use_anew()


async def test_sec_replica_does_not_crash_after_malicious_values_in_any_redis_key(redis_server: RedisServer) -> None:  # noqa: F811
    async with scene(RedisStorage(redis_server.url, limit=PATIENCE)) as found:
        for seed in range(10):
            chance = random.Random(seed)
            keys = sorted(redis_server.ask("KEYS", "*"))
            assert len(keys) > 5
            for key in keys:
                if not key.endswith(b":secret"):
                    overwrite(redis_server, chance, key)
            redis_server.ask("PUBLISH", chance.choice(redis_server.ask("PUBSUB", "CHANNELS")), b"s")
            with trio.fail_after(PATIENCE):
                await found.use()
            if seed % 5 == 4:
                redis_server.ask("FLUSHALL")
                with trio.fail_after(PATIENCE):
                    await found.set_up()
        redis_server.ask("FLUSHALL")
        with trio.fail_after(PATIENCE):
            await found.use_anew()


async def test_sec_replica_does_not_crash_after_malicious_values_in_any_sqlite_column(tmp_path: Path) -> None:
    for seed in range(2):
        file, chance = tmp_path / f"shared-{seed}.db", random.Random(seed)
        async with scene(SQLiteStorage(file)) as found:
            for _ in range(3):
                for each in files(file):
                    overwrite_rows(each, chance)
                with trio.fail_after(PATIENCE):
                    await found.use()


async def test_sec_replica_does_not_crash_after_corrupted_redis_replies(redis_server: RedisServer) -> None:  # noqa: F811
    chance = random.Random(1)

    def corrupt(data: bytes) -> bytes:
        changed = bytearray(data)
        if chance.random() < 0.3:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return chance.choice([bytes(changed), bytes(changed), bytes(changed) + chance.randbytes(9)])

    async with open_proxy(redis_server.port) as proxy, scene(RedisStorage(proxy.url, limit=1.0)) as found:
        for _ in range(5):
            proxy.corrupt = corrupt
            with trio.fail_after(PATIENCE):
                for member in found.members:
                    answer = await member.call("echo", {"text": "x"})
                    assert text_of(answer.json) == "x"
                    member.server.resource_updated("a:1")
                    answer = await member.endpoint.ask("POST", found.session, call("echo", 9, text="x"))
                    assert answer.status in (200, 404, 503), answer
        proxy.corrupt = None
        proxy.cut_all()
        with trio.fail_after(PATIENCE):
            for member in found.members:
                while (await member.endpoint.ask("POST", {**BASE}, INITIALIZE)).status == 503:  # noqa: ASYNC110
                    await trio.sleep(0.01)  # until it has noticed the cut and has connected again
            redis_server.ask("FLUSHALL")
            await found.use_anew()


@pytest.mark.parametrize("seed", [12, 13, 14])
async def test_sec_replicas_start_as_soon_as_redis_replies_are_no_longer_corrupted(
    redis_server: RedisServer,  # noqa: F811
    seed: int,
) -> None:
    chance = random.Random(seed)

    def corrupt(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(chance.choice([0, 0, 1, 3])):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed) + chance.choice([b"", b"", b"+x\r\n", b"*1\r\n"])

    async with open_proxy(redis_server.port) as proxy, trio.open_nursery() as nursery:
        proxy.corrupt = corrupt

        async def clear() -> None:
            while proxy.connections < 4:  # noqa: ASYNC110 - some were made in vain
                await trio.sleep(0.01)
            proxy.corrupt = None
            proxy.cut_all()

        nursery.start_soon(clear)
        with trio.fail_after(PATIENCE):
            async with fleet(add_tools, shared=RedisStorage(proxy.url, limit=0.5)) as (one, _):
                assert text_of((await one.call("echo", {"text": "x"})).json) == "x"
                nursery.cancel_scope.cancel(reason="the test is over")
