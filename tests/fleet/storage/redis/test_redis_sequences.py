"""Each script that replicas run in Redis returns what its twin in memory returns, after all sequences of operations.

The operations of a `Family` are few, and their arguments small. ``--sequences`` sets the length of the sequences.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import attrs
import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.fleet.storage.redis.sequences import Clock, Family, Operation, Steps, run_all

from trio_mcp.fleet.storage import memory
from trio_mcp.fleet.storage.memory import MemoryEventLog
from trio_mcp.fleet.storage.redis import messages, storage
from trio_mcp.fleet.storage.redis import sessions as redis_sessions
from trio_mcp.fleet.storage.redis import task_store as redis_tasks
from trio_mcp.fleet.storage.redis.link import Script
from trio_mcp.stores.memory import MemorySessionDirectory, MemoryTaskStore
from trio_mcp.stores.shared import SECRET_BYTES
from trio_mcp.stores.task_store import HintQueues, Outcome, TaskPhase, TaskStore
from trio_mcp.testing.stores.task_store_records import record

# Sessions

IDLE: Final = 90
"""Milliseconds. Redis doesn't move the end of a session for a use within a hundredth of this, which is less than 1."""


def opening(name: str, caller: bytes) -> Operation:
    options: Any = {"caller": caller, "mark": b"1", "idle_ms": IDLE, "limit": 3}
    return Operation(f"open {name} of {caller.decode()}", lambda part, _: part.open(name, b"new", **options))


def changing(name: str, was: bytes, mark: bytes) -> Operation:
    options: Any = {"expected_mark": was, "mark": mark, "idle_ms": IDLE}
    return Operation(f"change {name} from {was.decode()}", lambda part, _: part.change(name, mark, **options))


SESSIONS: Final = Family(
    redis_sessions._SCRIPTS,
    MemorySessionDirectory,
    lambda link, place: redis_sessions.RedisSessionDirectory(link, place, "bus", HintQueues()),
    [
        *(opening(name, caller) for name, caller in (("a", b"ann"), ("b", b"ann"), ("c", b"bob"), ("d", b"eve"))),
        *(Operation(f"read {name}", lambda part, _, name=name: part.read(name, idle_ms=IDLE)) for name in "abc"),
        *(Operation(f"exists {name}", lambda part, _, name=name: part.exists(name)) for name in "ac"),
        *(Operation(f"delete {name}", lambda part, _, name=name: part.delete(name)) for name in "ac"),
        *(changing(name, b"1", b"2") for name in "ac"),
        changing("a", b"2", b"1"),
        Operation("wait", waits=50),
    ],
)

# Events

RETENTION: Final = 90


def appending(stream: str, holder: str, first: int, *lines: bytes, **options: Any) -> Operation:
    given: dict[str, Any] = {"holder": holder, "first": first, "lines": lines, "limit": 4, "retention_ms": RETENTION}
    name = f"append {b' '.join(lines).decode()} to {stream} from {first} by {holder} {options or ''}"
    return Operation(name, lambda part, _: part.append("session", stream, **given, **options))


def events_opening(stream: str, holder: str) -> Operation:
    options: Any = {"holder": holder, "request_id": b"1", "retention_ms": RETENTION}
    return Operation(f"open {stream} by {holder}", lambda part, _: part.open("session", stream, **options))


def taking(stream: str, holder: str) -> Operation:
    options: Any = {"holder": holder, "retention_ms": RETENTION}
    return Operation(f"take {stream} for {holder}", lambda part, _: part.take_over("session", stream, **options))


def finishing(stream: str, holder: str) -> Operation:
    options: Any = {"dead_holder": holder, "line": b"x", "limit": 4, "retention_ms": RETENTION}
    return Operation(f"finish {stream} of {holder}", lambda part, _: part.finish_dead("session", stream, **options))


def reading(stream: str, number: int) -> Operation:
    async def step(part: Any, _: Steps) -> Any:
        found = await part.read_after("session", stream, number, retention_ms=RETENTION)
        return found and (found.stream, found.first, list(found.lines))

    return Operation(f"read {stream} after {number}", step)


EVENTS: Final = Family(
    redis_sessions._EVENT_SCRIPTS,
    MemoryEventLog,
    lambda link, place: redis_sessions.RedisEventLog(link, place, "bus", HintQueues()),
    [
        *(events_opening(stream, "me") for stream in "pq"),
        events_opening("p", "you"),
        taking("p", "me"),
        taking("p", "you"),
        appending("p", "me", 1, b"ab"),
        appending("p", "me", 2, b"c", b"de", note=b"n"),
        appending("p", "me", 1, b"f", finish=True),
        appending("p", "you", 1, b"gh"),
        appending("q", "me", 1, b"ijk"),
        appending("q", "me", 1, note=b"m"),
        finishing("p", "me"),
        finishing("q", "me"),
        reading("p", 0),
        reading("p", 2),
        reading("q", 0),
        Operation("delete", lambda part, _: part.delete("session")),
        Operation("wait", waits=50),
    ],
)

# Changes


def recording(*things: str) -> Operation:
    return Operation(f"record {' '.join(things)}", lambda part, _: part.record(things))


def since(which: int | None) -> Operation:
    async def step(part: Any, steps: Steps) -> Any:
        try:
            cursor = None if which is None else steps.cursors[which]
        except IndexError:
            cursor = "unknown"
        found = await part.read_since(cursor)
        steps.cursors = (*steps.cursors, found.cursor)
        return frozenset(found.changed), found.everything

    return Operation(f"read since {which}", step)


CHANGES: Final = Family(
    {name: each for name, each in messages._SCRIPTS.items() if name.startswith("changes")},
    lambda _: memory._MemoryChangeLog(),
    lambda link, place: messages.RedisChangeLog(link, place, "bus", HintQueues()),
    [recording("x"), recording("y"), recording("z"), recording("x", "y"), *map(since, (None, 0, 1, -1))],
)

# Messages: the reader has missed all of them, and reads its list


class MemoryLetters:
    """A mailbox that has lost its notifications, in memory: distinct messages, in the order of their last copies."""

    def __init__(self, clock: Clock) -> None:
        self._letters: dict[bytes, int] = {}
        self._clock = clock

    async def send(self, content: bytes, number: int | None) -> None:
        self._letters.pop(content, None)
        self._letters[content] = self._clock.now

    async def read(self) -> list[bytes]:
        return [each for each, at in self._letters.items() if at >= self._clock.now - messages._LISTED]


class RedisLetters:
    """A mailbox that has lost its notifications, in Redis."""

    def __init__(self, link: Any, place: str) -> None:
        self._courier = messages.RedisCourier(link, place, "me")
        self._courier._bulk = cast("Any", nullcontext())  # a place that waits for nothing
        self._link = link

    async def send(self, content: bytes, number: int | None) -> None:
        await self._courier.send("me", content, number=number)

    async def read(self) -> list[bytes]:
        mailbox = messages._RedisMailbox(self._link, self._courier.channel.encode(), cast("Any", None))
        await mailbox._read_list()
        found = list[bytes]()
        for each in mailbox._waiting:
            assert isinstance(each, bytes)
            is_whole = each[:1] == messages._WHOLE
            found.append(each[1:] if is_whole else cast("bytes", await mailbox._read_long(each)))
        return found


LONG: Final = {number: bytes([number]) * (messages._INLINE_MESSAGE_LIMIT + 1) for number in (1, 2)}


async def read_letters(part: Any, steps: Steps) -> Any:
    """Read the list. Long messages are deleted when they are read, so the sequence continues without them."""
    found = await part.read()
    if isinstance(part, MemoryLetters):
        for each in LONG.values():
            part._letters.pop(each, None)
    return found


LETTERS: Final = Family(
    {name: each for name, each in messages._SCRIPTS.items() if name.startswith("letter")},
    MemoryLetters,
    RedisLetters,
    [
        *(Operation(f"send {each!r}", lambda part, _, each=each: part.send(each, None)) for each in (b"a", b"b")),
        *(Operation(f"send {n}", lambda part, _, n=n: part.send(LONG[n], n)) for n in LONG),
        Operation("read", read_letters),
        Operation("wait", waits=6000),
    ],
)

# Rates and the secret


def acquiring(key: bytes, limit: int, burst: int) -> Operation:
    options: Any = {"limit": limit, "period_ms": 100, "burst": burst}
    return Operation(f"acquire {key.decode()} {limit} {burst}", lambda part, _: part.acquire(key, **options))


RATES: Final = Family(
    {"rate_take": storage._SCRIPTS["rate_take"]},
    memory._MemoryRateLimits,
    storage.RedisRateLimits,
    [
        acquiring(b"a", 1, 1),
        acquiring(b"b", 2, 2),
        acquiring(b"d", 4, 1),
        acquiring(b"c", 4, 3),
        Operation("wait a little", waits=12),
        Operation("wait", waits=60),
    ],
)


class MemorySecret:
    """The shared secret in memory. The first secret of the right length stays."""

    def __init__(self, _: Clock) -> None:
        self._secret = b""

    async def put(self, secret: bytes) -> bytes:
        if len(self._secret) != len(secret):
            self._secret = secret
        return self._secret


class RedisSecret:
    """The shared secret in Redis."""

    def __init__(self, link: Any, place: str) -> None:
        self._link, self._key = link, f"{place}:secret"

    async def put(self, secret: bytes) -> bytes:
        return await self._link.script(storage._SCRIPTS["secret_put"], [self._key], [secret])


PAIR: Final = (b"1", b"2")

SECRET: Final = Family(
    {"secret_put": storage._SCRIPTS["secret_put"]},
    MemorySecret,
    RedisSecret,
    [
        *(
            Operation(f"put {each!r}", lambda part, _, each=each: part.put(each * SECRET_BYTES))
            for each in (b"1", b"2")
        ),
        Operation("put short", lambda part, _: part.put(b"3")),
    ],
)

# Tasks

LEASE: Final = 40


def creating(task_id: str, holder: str | None, *, scope: str = "ann", ttl: int | None = None) -> Operation:
    new = record(task_id, scope=scope, name="x", holder=holder, mark=b"1")
    options: Any = {"lease_ms": LEASE, "ttl_ms": ttl, "retention_ms": 20, "limit": 3, "scope_limit": 2}
    return Operation(f"create {task_id} for {holder}", lambda store, _: store.create(new, **options))


def task_changing(task_id: str, was: bytes, mark: bytes, holder: str | None, **changes: Any) -> Operation:
    give_up = changes.pop("give_up", False)

    async def step(store: TaskStore, _: Steps) -> Any:
        kept = await store.read(None, task_id)
        before = record(task_id) if kept is None else kept.record
        if changes.get("phase") is TaskPhase.ENDED and kept is not None:
            changes["kept_until"] = kept.now + 20
        new = attrs.evolve(before, version=before.version + 1, mark=mark, **changes)
        return await store.change(new, expected_mark=was, holder=holder, give_up=give_up)

    return Operation(f"change {task_id} from {was.decode()} by {holder} {give_up} {changes}", step)


def claiming(holder: str, limit: int) -> Operation:
    async def step(store: TaskStore, _: Steps) -> Any:
        return sorted(await store.claim(holder, lease_ms=LEASE, limit=limit, names=("x",)), key=lambda each: each.id)

    return Operation(f"claim {limit} for {holder}", step)


def renewing(**held: str) -> Operation:
    async def step(store: TaskStore, _: Steps) -> Any:
        return set(await store.renew(held, lease_ms=LEASE))

    return Operation(f"renew {held}", step)


async def read_tasks(store: TaskStore, _: Steps) -> Any:
    """Read both records, their marks, and the first two pages."""
    read = [await store.read(None, each) for each in "ab"]
    first = list(await store.page("ann", None, 1))
    second = list(await store.page("ann", (first[0].created_at * 1000, "a"), 2)) if first else []
    return read, dict(await store.marks(["a", "b"])), first, second


@contextmanager
def no_limit(_: float) -> Generator[Any]:
    """Replaces `trio.move_on_after`, since the operations of many sequences wait at once in one task."""
    yield SimpleNamespace(shield=False, cancelled_caught=False)


def in_memory(clock: Clock) -> MemoryTaskStore:
    store = MemoryTaskStore()
    store._now = cast("Any", clock)
    return store


ENDED: Final[dict[str, Any]] = {"phase": TaskPhase.ENDED, "outcome": Outcome(b"{}")}


def in_redis(link: Any, place: str) -> redis_tasks.RedisTaskStore:
    return redis_tasks.RedisTaskStore(link, place.encode(), b"bus", HintQueues())


# If one claim gives several tasks the same lease, the stores may later claim them in any order. So claims of one task
# are a family of their own.
CLAIMS: Final = Family(
    redis_tasks._SCRIPTS,
    in_memory,
    in_redis,
    [
        creating("a", "me"),
        creating("b", None),
        creating("c", None, scope="bob"),
        task_changing("a", b"1", b"2", "me", give_up=True),
        task_changing("b", b"you", b"2", "you", give_up=True),
        claiming("me", 1),
        claiming("you", 1),
        renewing(a="me", b="you"),
        Operation("discard b", lambda store, _: store.discard("b", retention_ms=60)),
        Operation("wait", waits=50),
    ],
)

TASKS: Final = Family(
    redis_tasks._SCRIPTS,
    in_memory,
    in_redis,
    [
        creating("a", "me"),
        creating("a", None, ttl=60),
        creating("b", "me", ttl=60),
        creating("c", None),
        Operation("discard a", lambda store, _: store.discard("a", retention_ms=60)),
        Operation("read", read_tasks),
        task_changing("a", b"1", b"2", "me"),
        task_changing("a", b"1", b"2", None),
        task_changing("a", b"1", b"3", "me", **ENDED),
        task_changing("a", b"2", b"1", "me", give_up=True),
        task_changing("a", b"you", b"1", "you", **ENDED),
        claiming("you", 9),
        claiming("me", 9),
        renewing(a="me"),
        renewing(a="you", b="me"),
        Operation("expire", lambda store, _: store.expire(limit=9)),
        Operation("wait", waits=50),
    ],
)

FAMILIES: Final = {
    "sessions": SESSIONS,
    "events": EVENTS,
    "changes": CHANGES,
    "messages": LETTERS,
    "rates": RATES,
    "secret": SECRET,
    "tasks": TASKS,
    "claims": CLAIMS,
}


_ALL_SCRIPTS: Final = (
    *(storage._SCRIPTS, messages._SCRIPTS),
    *(redis_sessions._SCRIPTS, redis_sessions._EVENT_SCRIPTS, redis_tasks._SCRIPTS),
)


def _replace_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace time limits, random ids and the greatest number of changes."""
    for module in (memory, messages):
        monkeypatch.setattr(module, "CHANGES_LIMIT", 2)
    monkeypatch.setattr(redis_tasks, "trio", SimpleNamespace(move_on_after=no_limit))
    monkeypatch.setattr(messages, "_new_id", lambda: b"log")


@pytest.mark.parametrize("name", FAMILIES)
def test_redis_scripts_and_their_python_models_give_equal_results_for_all_operation_sequences(
    name: str, redis_of_process: RedisServer, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    _replace_what_waits(monkeypatch)
    length = cast("int", pytestconfig.getoption("sequences"))

    async def main() -> None:
        figures = run_all(FAMILIES[name], redis_of_process, length)
        assert figures.sequences == len(FAMILIES[name].operations) ** length
        print(f"{name}: {figures.sequences:,} sequences of {length} operations, {figures.steps:,} steps")

    trio.run(main)


def test_docs_page_states_the_correct_numbers_of_tested_operation_sequences_and_defects() -> None:
    page = (Path(__file__).parents[4] / "docs" / "proof.md").read_text()
    for family in FAMILIES.values():
        count = len(family.operations)
        assert any(f"| {count}, " in line and f"| {count**4:,} |" in line for line in page.splitlines())
    assert f"adds {len(DEFECTS)} small defects to the scripts" in page


def test_tested_operation_sequences_use_all_redis_scripts() -> None:
    of_families = {name for family in FAMILIES.values() for name in family.scripts}
    assert of_families == {name for each in _ALL_SCRIPTS for name in each}


DEFECTS: Final = {
    "a change of a session ignores the mark": ("sessions", "session_change", "found[1] ~= ARGV[5] or ", ""),
    "a used session is evicted like an unused one": ("sessions", "session_open", "unused(set) or ", ""),
    "a read doesn't extend a session": ("sessions", "session_read", "is_stale(found[3], idle)", "false"),
    "another holder appends": ("events", "events_append", "not stream or stream[HOLDER] ~= holder", "not stream"),
    "a finished stream is finished again": ("events", "events_finish_dead", " or stream[UNTIL] > 0", ""),
    "a dropped event still counts": ("events", "events_append", "    stream[DROPPED] = tonumber(number)\n", ""),
    "events are never dropped": ("events", "events_append", "while size > most do", "while false do"),
    "an old position misses changes": ("changes", "changes_since", " or number < cut", ""),
    "a message that was read stays": ("messages", "letter_take", "redis.call('ZREM', KEYS[2], ARGV[1])", ""),
    "a bucket has one token more": ("rates", "rate_take", "local wait = full + each", "local wait = full"),
    "an invalid secret stays": ("secret", "secret_put", "if kept and #kept == #ARGV[1] then", "if kept then"),
    "another holder changes a task": ("tasks", "task_change", " or (is_by and old[2] ~= by)", ""),
    "a task that is given up keeps its lease": ("tasks", "task_change", "gives_up and FREE or lease", "lease"),
    "a claim keeps the epoch": ("tasks", "task_claim", "fields[EPOCH] + 1", "fields[EPOCH]"),
    "another holder renews a lease": ("tasks", "task_renew", "kept[1] == ARGV[each + 1]", "kept[2]"),
    "a discarded task is created": ("tasks", "task_void", "if was_there == 0 then", "if false then"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_operation_sequences_detect_each_defect_that_is_added_to_a_redis_script(
    defect: str, redis_of_process: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, script, old, new = DEFECTS[defect]
    family = FAMILIES[name]
    text = family.scripts[script].text
    assert text.count(old) == 1
    for scripts in (*_ALL_SCRIPTS, family.scripts):
        if script in scripts:
            monkeypatch.setitem(cast("Any", scripts), script, Script(script, text.replace(old, new)))
    _replace_what_waits(monkeypatch)

    async def main() -> None:
        with pytest.raises(AssertionError, match=r"Redis has .*, and memory"):
            run_all(family, redis_of_process, 4)

    trio.run(main)
