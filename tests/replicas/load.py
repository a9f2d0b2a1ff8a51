"""Load: clients that do through a balancer all that clients do, and remember what they were promised.

What must not happen is written down as a sentence (`Load.broken`) and counted; what may happen is counted as well.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, Final, Literal

import attrs
import trio
from tests.replicas.fleet import LEASE, Fleet

from trio_mcp import Client, MCPError, PeerError

__all__ = ["Load"]

LIMIT: Final = 10.0
"""Seconds that a client gives each call."""
SLACK: Final = LEASE + 1.0
"""Seconds after its limit in which a call has ended, in any case."""
PROMPTLY: Final = 10.0
"""Seconds after the last disturbance in which what was promised has happened."""
UNKNOWN: Final = -32602
URIS: Final = 20


@attrs.define(eq=False)
class Listener:
    """A client that listens for changes."""

    owed: dict[str, float] = attrs.field(factory=dict[str, float])
    """Resources that have changed since they were last told of, each with the time of its change."""
    told: dict[str, float] = attrs.field(factory=dict[str, float])
    """When each resource was told of."""


class Load:
    """The clients of ``fleet``, and what they have seen."""

    def __init__(self, fleet: Fleet, *, seed: int) -> None:
        self._fleet = fleet
        self._random = random.Random(seed)
        self._names = count(1)
        self.outcomes = Counter[str]()
        """How calls have ended: ``answered``, or the kind of error."""
        self.errors: dict[str, str] = {}
        """The words of the first error of each kind of call."""
        self.seen = set[int]()
        """Processes that have answered."""
        self.broken: list[str] = []
        """What must not happen, and did."""
        self.may_lose: list[tuple[float, float]] = []
        """Times, from and to, of which a failover may have lost what was accepted."""
        self.disturbed = 0.0
        """The time of the last disturbance of what is shared, or of a replica that lives on."""
        self.killed: dict[int, float] = {}
        """Processes that were killed, or ended in good order, each with the time of that."""
        self.accepted: dict[str, float] = {}
        """Ids of tasks, each with the time of its start."""
        self.ended: dict[str, str] = {}
        """Tasks that have ended, each with its end as it was first seen."""
        self.lost = set[str]()
        self._listeners: list[Listener] = []
        self.cancels = 0
        self.changes = 0

    def act(self, nursery: trio.Nursery, *, callers: int = 4, legacy: bool = True) -> None:
        """Begin to call, cancel, ask and change, until cancelled."""
        eras: list[Literal["modern", "legacy"]] = ["modern", "legacy"] if legacy else ["modern"]
        for era in eras:
            for _ in range(callers):
                nursery.start_soon(self._with_clients, era, self._call)
            nursery.start_soon(self._with_clients, era, self._cancel)
        nursery.start_soon(self._with_clients, "modern", self._start_task)
        nursery.start_soon(self._with_clients, "modern", self._touch)

    def watch(self, nursery: trio.Nursery, *, listeners: int = 2) -> None:
        """Begin to listen for changes, and to look at tasks, until cancelled."""
        for _ in range(listeners):
            nursery.start_soon(self._listen)
        nursery.start_soon(self._with_clients, "modern", self._look_at_all, 1)

    async def _with_clients(
        self, era: Literal["modern", "legacy"], act: Callable[[Client], Awaitable[None]], rounds: int = 20
    ) -> None:
        """Do something again and again, with a new client now and then."""
        while True:
            try:
                async with self._fleet.client(era, call_timeout=LIMIT, elicitation=self._answer) as client:
                    for _ in range(rounds):
                        await act(client)
                        await trio.sleep(self._random.uniform(0.01, 0.1))
            except* (MCPError, trio.TooSlowError) as errors:  # of the opening
                for error in _leaves(errors):
                    self._failed(error)
            await trio.sleep(0.05)

    def _answer(self, _: Any) -> dict[str, Any]:
        return {"name": "Ada"}

    async def _bounded(self, what: str, call: Awaitable[Any]) -> Any:
        """Return what a call returns; `None` after an error of a kind that clients know."""
        begun = trio.current_time()
        with trio.move_on_after(LIMIT + SLACK) as scope:
            try:
                result = await call
            except (MCPError, trio.TooSlowError) as error:
                self._failed(error, what)
                return None
            else:
                self.outcomes["answered"] += 1
                return result
            finally:
                if trio.current_time() - begun > LIMIT + SLACK:
                    self.broken.append(f"{what} took {trio.current_time() - begun:.1f} s")
        if scope.cancelled_caught:
            self.broken.append(f"{what} had no end within {LIMIT + SLACK} s")
        return None

    def _failed(self, error: BaseException, what: str = "a client") -> None:
        self.outcomes[_kind(error)] += 1
        self.errors.setdefault(f"{what}: {_kind(error)}", str(error)[:300])

    # Calls

    async def _call(self, client: Client) -> None:
        match self._random.randrange(8):
            case 0:
                result = await self._bounded("a question", client.call_tool("ask"))
                if result is not None and result.is_error:
                    self.outcomes["a handler that could not ask"] += 1
                elif result is not None and not result.text.endswith(" Ada"):
                    self.broken.append(f"a question was answered with {result.text!r}")
            case 1:
                await self._bounded("a question of any process", client.call_tool("ask_anywhere"))
            case 2:
                await self._count(client)
            case _:
                seconds = self._random.choice((0, 0.01, 0.2))
                result = await self._bounded("a call", client.call_tool("pid", {"seconds": seconds}))
                if result is not None:
                    self.seen.add(int(result.text))

    async def _count(self, client: Client) -> None:
        """Read a stream, of which nothing may come twice or out of order, also where it is resumed elsewhere. Progress
        may be left out, but not the last one."""
        seen: list[float] = []
        call = client.call_tool(
            "count", {"steps": 6, "seconds": 0.05}, on_progress=lambda told: seen.append(told.progress)
        )
        if await self._bounded("a stream", call) is not None and (seen != sorted(set(seen)) or seen[-1] != 6):
            self.broken.append(f"of a stream came {seen}")

    async def _cancel(self, client: Client) -> None:
        """Leave a call: its handler ends, unless its process has been killed. In a session the cancel is a message of
        its own, which is lost where just then the replica is killed that takes it."""
        name = f"n{next(self._names)}"
        with trio.CancelScope() as scope:
            call = client.call_tool(
                "hang", {"name": name, "asks": False}, on_progress=lambda _: scope.cancel("the client leaves")
            )
            await self._bounded("a call that is left", call)
        if not scope.cancelled_caught:
            return
        left = trio.current_time()
        while True:
            told = {words[0]: int(words[1]) for words in self._fleet.told(f"hang:{name}")}
            if "ended" in told or told["began"] in self.killed:
                self.cancels += "ended" in told
                return
            if trio.current_time() > max(left, self.disturbed) + PROMPTLY:
                if client.revision.server_requests and any(abs(left - when) < 1.0 for when in self.killed.values()):
                    self.outcomes["a cancel that may not have been taken"] += 1
                    return
                self.broken.append(f"the cancel of {name} was lost, and {told['began']} lives")
                return
            await trio.sleep(0.05)

    # Changes

    async def _touch(self, client: Client) -> None:
        """Change a resource, and wait for as long as the process needs to have told the others."""
        uri = f"test://{self._random.randrange(URIS)}"
        listeners = list(self._listeners)
        begun = trio.current_time()
        was_disturbed = self.disturbed
        result = await self._bounded("a change", client.call_tool("touch", {"name": uri.removeprefix("test://")}))
        # While the store is down, the process must live until it is back, which nobody knows here.
        if result is not None and self.disturbed == was_disturbed and self.disturbed < begun - PROMPTLY:
            self.changes += 1
            for listener in listeners:
                if listener in self._listeners and listener.told.get(uri, 0.0) < begun:
                    listener.owed.setdefault(uri, trio.current_time())

    async def _listen(self) -> None:
        uris = [f"test://{number}" for number in range(URIS)]
        while True:
            listener = Listener()
            try:
                async with self._fleet.client(call_timeout=LIMIT) as client, client.listen(uris=uris) as changes:
                    self._listeners.append(listener)
                    async for change in changes:
                        assert change.uri is not None
                        listener.owed.pop(change.uri, None)
                        listener.told[change.uri] = trio.current_time()
            except* (MCPError, trio.TooSlowError) as errors:
                for error in _leaves(errors):
                    self._failed(error)
            finally:
                if listener in self._listeners:  # the end tells that everything may have changed
                    self._listeners.remove(listener)
            await trio.sleep(0.05)

    # Tasks

    async def _start_task(self, client: Client) -> None:
        arguments = {"steps": self._random.randrange(1, 6), "seconds": self._random.choice((0.0, 0.05, 0.3))}
        task = await self._bounded("the start of a task", client.start_task("work", arguments))
        if task is not None and task.id is not None:
            self.accepted[task.id] = trio.current_time()

    async def _look_at_all(self, client: Client) -> None:
        for task_id in tuple(self.accepted):
            if task_id in self.lost or (task_id in self.ended and self._random.random() > 0.02):
                continue
            if self._random.random() < 0.005:
                await self._bounded("the cancel of a task", client.resume_task(task_id).cancel())
            await self._look(client, task_id)

    async def _look(self, client: Client, task_id: str) -> None:
        try:
            with trio.move_on_after(LIMIT + SLACK):
                state = await client.request("tasks/get", {"taskId": task_id}, dict)
        except PeerError as error:
            self._failed(error)
            if error.code == UNKNOWN:
                self.lost.add(task_id)
                accepted = self.accepted[task_id]
                if not any(begin <= accepted <= end for begin, end in self.may_lose):
                    self.broken.append(f"the task {task_id} is lost")
            return
        except (MCPError, trio.TooSlowError) as error:
            self._failed(error)
            return
        if state["status"] in ("completed", "failed", "cancelled"):
            end = json.dumps({key: state.get(key) for key in ("status", "result", "error")}, sort_keys=True)
            if self.ended.setdefault(task_id, end) != end and not self.may_lose:
                self.broken.append(f"the task {task_id} ended twice: {self.ended[task_id]} and {end}")

    # Afterwards

    async def settle(self, *, bound: float) -> None:
        """Wait until each task has ended and each listener knows of each change: for ``bound`` seconds at most, after
        which it counts as never to happen. Those who `watch` go on meanwhile."""
        with trio.move_on_after(bound):
            while self._waited_for():  # noqa: ASYNC110 - what is waited for comes by looking
                await trio.sleep(0.1)
        self.broken += [f"{bound:g} s after the storm {each}" for each in self._waited_for()]

    def _waited_for(self) -> list[str]:
        still_open = sorted(self.accepted.keys() - self.ended.keys() - self.lost)
        return [f"the task {task_id} had not ended" for task_id in still_open] + [
            f"a listener was not told of {uri}" for listener in self._listeners for uri in listener.owed
        ]

    def check_tasks(self) -> None:
        """Check in the journal that nobody has written after his successor."""
        for task_id in self.accepted:
            runs: dict[int, list[int]] = defaultdict(list)
            kept: dict[int, int] = defaultdict(int)
            restored: dict[int, int] = {}
            for epoch, process, what, step in self._fleet.told(f"task:{task_id}"):
                if what == "runs":
                    runs[int(epoch)].append(int(process))
                    restored[int(epoch)] = int(step)
                else:
                    kept[int(epoch)] = max(kept[int(epoch)], int(step))
            if self.may_lose:
                continue
            for epoch, processes in runs.items():
                if len(processes) > 1:
                    self.broken.append(f"the task {task_id} had two runs of the number {epoch}")
                before = max((kept[each] for each in kept if each < epoch), default=0)
                if restored[epoch] < before:
                    self.broken.append(f"the task {task_id} lost its step {before}")
            end = json.loads(self.ended.get(task_id, "{}"))
            if end.get("status") == "failed":
                self.broken.append(f"the task {task_id} failed: {end['error']}")
            elif end.get("status") == "completed":
                writer = int(end["result"]["content"][0]["text"].split()[0])
                if writer != max(runs):
                    self.broken.append(f"the task {task_id} was ended by run {writer} after run {max(runs)} began")


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _kind(error: BaseException) -> str:
    code = getattr(error, "code", None) or getattr(error, "status", None)
    return type(error).__name__ if code is None else f"{type(error).__name__} {code}"
