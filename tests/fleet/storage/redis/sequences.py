"""Runs all sequences of some operations on a part of the storage in Redis, and on its twin in memory.

After each operation, both must have returned or raised the same. Each step takes one millisecond of a virtual time,
which both parts have: ``virtual_time.lua`` contains the time of Redis, and its expiry times.

If two sequences lead to the same content in Redis, the same content in memory, and the same time, only one of them is
continued. That's sound, because whatever happens later depends on nothing else. So the steps of a long sequence are
run once, and not once for each sequence.

The twin of the content is a copy: in Redis, each sequence has a *place*, a text that all of its keys contain. A step
first copies all keys of a place.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType, coroutine
from typing import Any, Final, TypeAlias, cast

import attrs
from tests.fleet.redis_server import RedisServer, read_answer
from tests.patience import PATIENCE

from trio_mcp.fleet.storage.redis.link import Script, Value
from trio_mcp.stores.task_store import StoreFull

__all__ = ["Clock", "Family", "Figures", "Operation", "Steps", "run_all"]

NOW: Final = 1_800_000_000_000
_TOGETHER: Final = 2000
"""Steps that are sent to Redis together."""
_WRAPPER: Final = Path(__file__).with_name("virtual_time.lua").read_text()
_RAW: Final = Script("raw", "return redis.call(unpack(ARGV))")
_COPY: Final = """
local from, to = ARGV[1], ARGV[2]
for _, each in ipairs(redis.call('SMEMBERS', from .. 'used')) do
    local at = string.find(each, '@', 1, true)
    local before, after = string.sub(each, 1, at - 1), string.sub(each, at + 1)
    redis.call('COPY', before .. from .. after, before .. to .. after)
end
redis.call('COPY', from .. 'used', to .. 'used')
redis.call('COPY', from .. 'ttl', to .. 'ttl')
"""
_DUMP: Final = """
local place, all = ARGV[1], {}
local names = redis.call('SMEMBERS', place .. 'used')
table.sort(names)
for _, each in ipairs(names) do
    local at = string.find(each, '@', 1, true)
    local key = string.sub(each, 1, at - 1) .. place .. string.sub(each, at + 1)
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'none' then
        local content = redis.call('DUMP', key)
        all[#all + 1] = each .. ' ' .. (redis.call('HGET', place .. 'ttl', each) or '') .. ' ' .. redis.sha1hex(content)
    end
end
return redis.sha1hex(table.concat(all, '\\n'))
"""

Step: TypeAlias = "Callable[[Any, Steps], Awaitable[Any]]"
"""Runs an operation on a part of the storage, and returns the part of its result that must be the same."""


class Clock:
    """The time of a sequence in milliseconds."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@attrs.define
class Steps:
    """What one side has returned in earlier steps of a sequence, for use in later steps."""

    cursors: tuple[Any, ...] = ()


@attrs.frozen
class Operation:
    """An operation on both sides. ``waits`` is the time that passes before the operation, in milliseconds."""

    name: str
    step: Step | None = None
    waits: int = 0


@attrs.frozen
class Family:
    """A part of the storage: how it's made on each side, the names of its scripts, and its operations."""

    scripts: Mapping[str, Script]
    in_memory: Callable[[Clock], Any]
    in_redis: Callable[[Any, str], Any]
    operations: Sequence[Operation]


@attrs.frozen
class Figures:
    """What was run."""

    sequences: int
    """Sequences of exactly the greatest length."""
    steps: int
    """Steps that were run on both sides."""


@attrs.define
class _Node:
    """The state after a sequence."""

    names: tuple[str, ...]
    place: int
    memory: Any
    clock: Clock
    seen: tuple[Steps, Steps]
    """The earlier results of both sides."""
    sequences: int = 1
    """How many sequences lead here."""


_Command: TypeAlias = tuple[Value, ...]


@coroutine
def _sent(commands: list[_Command]) -> Generator[list[_Command], list[Any], list[Any]]:
    return (yield commands)


class _Link:
    """The part of `Link` that storages use. A command waits until the commands of many sequences are sent together."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._last = place, clock.now

    async def script(self, script: Script, keys: Sequence[Value], args: Sequence[Value]) -> Any:
        [answer] = await _sent([("EVALSHA", _digest(script.text), len(keys), *keys, *args, *self._last)])
        return _raised(answer)

    async def pipeline(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        digest = _digest(_RAW.text)
        answers = await _sent([("EVALSHA", digest, 0, *command, *self._last) for command in commands])
        return [_raised(each) for each in answers]


@cache
def _wrapped(text: str) -> str:
    return _WRAPPER.replace("--[[SCRIPT]]", text)


@cache
def _digest(text: str) -> str:
    return hashlib.sha1(_wrapped(text).encode(), usedforsecurity=False).hexdigest()


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _place(number: int) -> str:
    return f"P{number:08d}P"


class _Server:
    """A connection to Redis, over which many commands are sent at once."""

    def __init__(self, server: RedisServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self._answers = self._socket.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def ask(self, commands: Sequence[_Command]) -> list[Any]:
        """Return the answers to ``commands``, with an exception for each error."""
        found = list[Any]()
        for start in range(0, len(commands), _TOGETHER):
            some = commands[start : start + _TOGETHER]
            self._socket.sendall(b"".join(map(_framed, some)))
            for _ in some:
                try:
                    found.append(read_answer(self._answers))
                except RuntimeError as error:
                    found.append(error)
        return found


def _framed(command: _Command) -> bytes:
    parts = [each if isinstance(each, bytes) else str(each).encode() for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


async def _outcome(step: Step, part: Any, steps: Steps) -> Any:
    try:
        return await step(part, steps)
    except (StoreFull, ValueError, RuntimeError) as error:  # a `RuntimeError` is an error of Redis
        return type(error)


def run_all(family: Family, server: RedisServer, length: int) -> Figures:
    """Run all sequences of up to ``length`` operations. Raises `AssertionError` for a difference."""
    server.ask("FLUSHALL")
    redis = _Server(server)
    try:
        return _run_all(family, redis, length)
    finally:
        redis.close()


def _run_all(family: Family, redis: _Server, length: int) -> Figures:
    for script in (_RAW, *family.scripts.values()):
        [digest] = redis.ask([("SCRIPT", "LOAD", _wrapped(script.text))])
        assert digest == _digest(script.text).encode(), digest
    clock = Clock()
    nodes = [_Node((), 0, family.in_memory(clock), clock, (Steps(), Steps()))]
    places, steps = 1, 0
    for left in range(length - 1, -1, -1):
        following = list[_Node]()
        for node in nodes:
            frozen = _frozen(node)
            for operation in family.operations:
                following.append(_copied(node, frozen, operation, places))
                places += 1
        redis.ask([("EVAL", _COPY, 0, _place(before), _place(node.place)) for before, node in _edges(nodes, following)])
        steps += len(following)
        _step_all(family, redis, following)
        nodes = _merged(redis, following) if left else following
    return Figures(sum(node.sequences for node in nodes), steps)


def _edges(nodes: Sequence[_Node], following: Sequence[_Node]) -> Iterator[tuple[int, _Node]]:
    each = len(following) // len(nodes)
    for number, node in enumerate(following):
        yield nodes[number // each].place, node


def _read_only(content: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(content)


class _Pickler(pickle.Pickler):
    """Pickles read-only mappings as well, which records contain."""

    def reducer_override(self, obj: Any) -> Any:
        return (_read_only, (dict(cast("Any", obj)),)) if type(obj) is MappingProxyType else NotImplemented


def _frozen(node: _Node) -> bytes:
    """Return what both sides of a sequence contain in this process, as bytes."""
    written = io.BytesIO()
    _Pickler(written).dump((node.memory, node.clock, node.seen))
    return written.getvalue()


def _copied(node: _Node, frozen: bytes, operation: Operation, place: int) -> _Node:
    memory, clock, seen = pickle.loads(frozen)
    clock.now += 1 + operation.waits
    return _Node((*node.names, operation.name), place, memory, clock, seen, node.sequences)


def _step_all(family: Family, redis: _Server, nodes: Sequence[_Node]) -> None:
    """Run the last operation of each sequence on both sides, and compare."""
    by_name = {each.name: each.step for each in family.operations}
    expected = list[Any]()
    running = list[tuple[int, Coroutine[list[_Command], list[Any], Any], list[_Command]]]()
    found: dict[int, Any] = {}

    def go_on(number: int, run: Coroutine[list[_Command], list[Any], Any], answers: list[Any] | None) -> None:
        try:
            running.append((number, run, run.send(answers)))  # type: ignore[arg-type]
        except StopIteration as end:
            found[number] = end.value

    for number, node in enumerate(nodes):
        step = by_name[node.names[-1]]
        if step is None:
            expected.append(None)
            found[number] = None
            continue
        expected.append(_at_once(_outcome(step, node.memory, node.seen[0])))
        part = family.in_redis(_Link(_place(node.place), node.clock), _place(node.place))
        go_on(number, _outcome(step, part, node.seen[1]), None)
    while running:
        waiting = tuple(running)
        running.clear()
        answers = iter(redis.ask([command for _, _, commands in waiting for command in commands]))
        for number, run, commands in waiting:
            go_on(number, run, [next(answers) for _ in commands])
    for number, node in enumerate(nodes):
        assert found[number] == expected[number], (
            f"{', '.join(node.names)}: Redis has {found[number]!r}, and memory {expected[number]!r}"
        )


def _merged(redis: _Server, nodes: Sequence[_Node]) -> list[_Node]:
    """Return one node for each state, and count the sequences that lead there."""
    dumps = redis.ask([("EVAL", _DUMP, 0, _place(node.place)) for node in nodes])
    states: dict[Any, _Node] = {}
    for node, dump in zip(nodes, dumps, strict=True):
        state = _raised(dump), _frozen(node)
        same = states.setdefault(state, node)
        if same is not node:
            same.sequences += node.sequences
    return list(states.values())


def _at_once(call: Any) -> Any:
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the part in memory waits")
