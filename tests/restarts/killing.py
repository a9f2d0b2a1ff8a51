"""Killing: servers that share a file of tasks are killed at any moment, while clients start, answer and cancel."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import trio
from tests.forked import Forked

from trio_mcp import TaskSettings
from trio_mcp.jsonrpc.codec import decode_value, encode_value
from trio_mcp.stores import SQLiteTaskStore
from trio_mcp.stores.task_store import Outcome, TaskPhase, TaskRecord
from trio_mcp.tasks.records import TaskRecords

__all__ = ["Killing"]

SERVER = Path(__file__).with_name("killed_server.py")
KINDS = ("once", "again", "resume", "ask")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}
_PATIENCE = 60.0


class Process:
    """One server. ``lease``: length of its leases in seconds."""

    def __init__(self, folder: Path, lease: float = 1.0) -> None:
        stdin, self._input = os.pipe()
        output, stdout = os.pipe()
        with (folder / "errors").open("ab") as errors:
            arguments = [str(SERVER), str(folder / "tasks.db"), str(folder / "told"), str(lease)]
            self.process = Forked(arguments, stdin=stdin, stdout=stdout, stderr=errors.fileno())
        os.close(stdin)
        os.close(stdout)
        self.writing = trio.lowlevel.FdStream(self._input)
        self.reading = trio.lowlevel.FdStream(output)
        self.is_dead = False
        self._ids = count(1)

    async def start(self, kind: str, seconds: float) -> None:
        """Call a tool. The answer comes by `answers`, unless the process dies before."""
        params = {"name": kind, "arguments": {"seconds": seconds}, "_meta": META}
        request = {"jsonrpc": "2.0", "id": f"{kind}-{next(self._ids)}", "method": "tools/call", "params": params}
        try:
            await self.writing.send_all(json.dumps(request).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            assert self.is_dead

    def kill(self) -> None:
        """Kill the process, wherever it is."""
        self.is_dead = True
        self.process.kill()

    async def aclose(self) -> None:
        await self.writing.aclose()
        await self.reading.aclose()


class Killing:
    """``processes`` servers at a time, of which one after another is killed."""

    def __init__(self, folder: Path, *, seed: int, processes: int = 2) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._count = processes
        self._processes: list[Process] = []
        (folder / "told").touch()
        self._records = TaskRecords(TaskSettings(store=SQLiteTaskStore(folder / "tasks.db")))
        self.accepted: dict[str, str] = {}
        """The kinds of the tasks whose ids we were told."""
        self.ended: dict[str, tuple[TaskPhase, Outcome | None]] = {}
        """The ends of the tasks, as they were first seen."""
        self.kills = 0

    async def run(self, kills: int) -> None:
        """Kill so many servers, and let the last ones end what there is to do."""
        with trio.fail_after(kills + 2 * _PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(self._count):
                    self._begin(nursery)
                nursery.start_soon(self._look)
                async with trio.open_nursery() as load:
                    load.start_soon(self._load)
                    while self.kills < kills:
                        await trio.sleep(self._random.uniform(0.05, 0.4))
                        self._kill_one(nursery)
                    load.cancel_scope.cancel()
                while len(self.ended) < len(self.accepted):  # noqa: ASYNC110 - `_look` looks as often
                    await trio.sleep(0.1)
                for process in self._processes:
                    process.kill()
                nursery.cancel_scope.cancel()

    def _begin(self, nursery: trio.Nursery) -> None:
        process = Process(self._folder)
        self._processes.append(process)
        nursery.start_soon(self._listen, process)

    def _kill_one(self, nursery: trio.Nursery) -> None:
        process = self._processes.pop(self._random.randrange(len(self._processes)))
        process.kill()
        self.kills += 1
        self._begin(nursery)

    async def _load(self) -> None:
        while True:
            await trio.sleep(self._random.uniform(0, 0.1))
            process = self._random.choice(self._processes)
            await process.start(self._random.choice(KINDS), self._random.choice((0, 0.02, 0.2, 1.0)))

    async def _listen(self, process: Process) -> None:
        """Take the answers of a process, also those that it sent before it died."""
        rest = b""
        try:
            async for part in process.reading:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    message: dict[str, Any] = json.loads(line)
                    assert "result" in message, message
                    assert message["result"]["resultType"] == "task", message
                    self.accepted[message["result"]["taskId"]] = message["id"].partition("-")[0]
        finally:
            with trio.CancelScope(shield=True):
                await process.aclose()
        assert process.is_dead, (self._folder / "errors").read_text()[-5000:]

    async def _look(self) -> None:
        """Look at each task until it has ended, and twice more; answer, and cancel now and then."""
        while True:
            for task_id in tuple(self.accepted):
                if task_id in self.ended and self._random.random() > 0.05:
                    continue
                record = await self._records.read(None, task_id)
                assert record is not None, f"{task_id} is lost"
                await self._see(record)
            await trio.sleep(0.1)

    async def _see(self, record: TaskRecord) -> None:
        if record.phase.is_final:
            end = (record.phase, record.outcome)
            assert self.ended.setdefault(record.id, end) == end, f"{record.id} has ended twice"
        elif record.questions:
            key = self._random.choice(tuple(record.questions))
            answer = {"action": "accept", "content": {"name": decode_value(record.questions[key])["params"]["message"]}}
            await self._records.answer("", record.id, {key: encode_value(answer)})
        elif self._random.random() < 0.01:
            await self._records.cancel("", record.id, "the test")

    # Afterwards

    def told(self) -> dict[str, list[list[str]]]:
        """What the tools told, by tasks."""
        lines: dict[str, list[list[str]]] = defaultdict(list)
        for line in (self._folder / "told").read_text().splitlines():
            task_id, *words = line.split()
            lines[task_id].append(words)
        return lines

    def check(self) -> None:
        """Check all that holds at the end."""
        told = self.told()
        for task_id, kind in self.accepted.items():
            phase, outcome = self.ended[task_id]
            runs = [words for words in told[task_id] if words[3] == "runs"]
            owners = {(epoch, process) for epoch, process, *_ in runs}
            assert len(owners) == len(runs), f"{task_id} ran twice under one owner"
            assert len({epoch for epoch, _ in owners}) == len(owners), f"{task_id} ran under two owners of one epoch"
            if phase is TaskPhase.CANCELLED:
                assert outcome is None
                continue
            assert outcome is not None
            value = decode_value(outcome.json)
            if kind == "once":
                assert len(runs) <= 1, f"{task_id} ran {len(runs)} times"
                assert value["code"] == -31002 if outcome.is_error else value["content"][0]["text"] == "once"
            else:
                assert runs, f"{task_id} never ran"
                text = "Who? And who else?" if kind == "ask" else kind
                assert not outcome.is_error, value
                assert value["content"][0]["text"] == text
            if kind == "resume":
                self._check_steps(told[task_id])

    def _check_steps(self, lines: list[list[str]]) -> None:
        kept: dict[int, int] = defaultdict(int)
        for epoch, _, _, what, step in lines:
            if what == "kept":
                kept[int(epoch)] = max(kept[int(epoch)], int(step))
        for epoch, _, _, what, step in lines:
            if what == "runs":
                before = [kept[each] for each in kept if each < int(epoch)]
                assert int(step) >= max(before, default=0), "a checkpoint was lost"
