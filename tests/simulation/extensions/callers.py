"""The clients of the simulation: each opens a connection, and calls, tells, leaves and answers, at random.

A `Caller` knows what it may see of each call, and notes all else as a fault.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import attrs
import trio
from tests.simulation.extensions.offers import (
    FAILED,
    REFUSED,
    UNANSWERED,
    Done,
    Journal,
    Life,
    Order,
    Question,
    Step,
    added,
    confirm,
    did,
    grown,
    run,
    work,
)
from tests.simulation.extensions.places import Place, left_in_tables
from tests.simulation.extensions.wires import Wire

from trio_mcp import CancelAcknowledged, Client, CodedError, ConnectionLost, MCPError, PeerError, confirm_cancels
from trio_mcp.types import CallEnding, ElicitResult

BOUND = 120.0
"""Seconds within which each call ends, whatever happens."""
SETTLED = 12.0
"""Seconds after which nothing is on its way any more, and all handlers of calls that were left have cleaned up."""
TIMES = (0.0, 0.0, 0.01, 0.05, 0.1, 0.5, 2.5)
WITHIN = (0.2, 1.0, 6.0)
BUSY, UPSTREAM_LOST = -31000, -31001
_ROUNDING = 0.02


@attrs.frozen
class Route:
    """A way to the server: through ``place``, which stands before ``behind``."""

    place: Place
    era: Any
    behind: tuple[Place, ...] = ()
    has_extension: bool = True
    """True where the extension passes."""
    is_alone: bool = True
    """True where it is plain whom and what each message is for."""

    asks: bool = True
    """True where questions come; false where nobody knows which call a question is for."""

    @property
    def is_open(self) -> bool:
        return all(each.is_open for each in (self.place, *self.behind))

    @property
    def disturbances(self) -> int:
        return sum(each.disturbances for each in (self.place, *self.behind))


@attrs.define
class Told:
    """What was told of one order."""

    steps: list[int] = attrs.Factory(list)
    progress: list[float] = attrs.Factory(list)
    is_answered: bool = False
    """True once the call was answered, with all that was told before: what comes later is too late."""
    is_left: bool = False
    """True once the call was left. Over a connection of several clients, a part may still come, by a later call."""


class Caller:
    """A client that goes by one way for a while, under a ``name``."""

    def __init__(
        self, name: str, route: Route, journal: Journal, chance: Random, faults: list[str], outcomes: Counter[str]
    ) -> None:
        self.name = name
        self.route = route
        self._journal = journal
        self._chance = chance
        self._faults = faults
        self._outcomes = outcomes
        self._wire: Wire = route.place.wire()
        self._client: Client | None = None
        self._nursery: trio.Nursery | None = None
        self._told: dict[str, Told] = {}
        self._grown: list[int] = []
        self._added = 0
        self._telling = trio.Lock()
        self._numbers = iter(range(10**9))
        self._before = 0
        self._is_leaving = False

    def _fault(self, what: str) -> None:
        self._faults.append(f"{self.name} by {self.route.place.name} ({self.route.era}): {what}")

    @property
    def _is_calm(self) -> bool:
        """True while nothing went wrong on the way."""
        return self.route.is_open and self.route.disturbances == self._before and not self._wire.is_cut

    # Life

    async def live(self) -> None:
        """Open a connection, use it, and leave it in one way or another."""
        self._before = self.route.disturbances
        ends_well = self._chance.random() < 0.6
        try:
            async with self._opened() as client:
                self._client = client
                self._outcomes["opened"] += 1
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    for _ in range(self._chance.randint(1, 3)):
                        nursery.start_soon(self._act, client, self._chance.randint(1, 12))
                    if not ends_well:
                        await trio.sleep(self._chance.uniform(0, 8))
                        if self._chance.random() < 0.5:
                            self.route.place.cut(self._wire)
                            self._outcomes["cut"] += 1
                        else:
                            self._is_leaving = True
                            nursery.cancel_scope.cancel(reason="the client goes")
                if ends_well:
                    await self._settle(client)
                self._is_leaving = True
        except* (MCPError, trio.TooSlowError) as group:
            if self._is_calm:
                self._fault(f"a client failed: {group.exceptions}")

    def _opened(self) -> AbstractAsyncContextManager[Client]:
        options: dict[str, Any] = {"era": self.route.era, "extensions": [CancelAcknowledged()]}
        options["elicitation"] = self._elicited
        options["connect_timeout"] = 20
        if self.route.has_extension:
            options["extensions"].append(work)
            options["handlers"] = {confirm: self._confirm}
            options["on_notification"] = {did: self._did, grown: self._heard}
        return self.route.place.opened(self._wire, **options)

    async def _act(self, client: Client, times: int) -> None:
        for _ in range(times):
            if client.lost is not None:
                return
            if self.route.has_extension and self._chance.random() < 0.25:
                await self._tell(client)
            else:
                await self._call(client)
            await trio.sleep(self._chance.choice(TIMES))

    async def _settle(self, client: Client) -> None:
        """Wait until nothing is on its way, and check what has come."""
        count = self._journal.grown
        await trio.sleep(SETTLED)
        if not self._is_calm:
            return
        self._outcomes["settled"] += 1
        self._faults += left_in_tables(client._connection, f"the client {self.name} of {self.route.place.name}")
        for name in self._told:
            if self._journal.orders[name].running:
                self._fault(f"{name} was answered or left, and still runs")
        if self._journal.added[self.name] != list(range(self._added)):
            self._fault(f"told {self._added} times, and the server heard {self._journal.added[self.name]}")
        if self._grown and self._grown[-1] < count:
            self._fault(f"all were told {count} times, and the client heard {self._grown}")

    # Notifications

    async def _tell(self, client: Client) -> None:
        try:
            async with self._telling:  # tasks of one client go on in any order
                number, self._added = self._added, self._added + 1
                await client.send_notification(added, Step(self.name, number))
            self._outcomes["told"] += 1
        except ConnectionLost:
            if self._is_calm:
                self._fault("a connection was lost that nobody has cut")

    def _heard(self, step: Step) -> None:
        if self._grown and step.number != self._grown[-1] + 1:
            self._fault(f"all were told {step.number}, after {self._grown}")
        self._grown.append(step.number)
        self._outcomes["heard"] += 1

    def _did(self, step: Step) -> None:
        told = self._told.get(step.name)
        if told is None:
            if not self.route.is_alone:  # over a connection of several clients, all are told: see `proxy`
                return
            self._fault(f"told of what another client has ordered: {step}")
        elif told.is_answered:
            self._fault(f"told of {step} after the answer")
        elif told.is_left and not self.route.is_alone and step.number > max(told.steps, default=-1):
            told.steps.append(step.number)
        elif step.number != len(told.steps):
            self._fault(f"told of {step} after {told.steps}")
        else:
            told.steps.append(step.number)

    # Questions

    async def _elicited(self, question: Any) -> ElicitResult:
        name, number, answers = question.message.split("|")
        answer = await self._answer(Question(name, int(number), answers))
        return ElicitResult("accept", {"name": answer})

    async def _confirm(self, question: Question) -> Step:
        await self._answer(question)
        return Step(question.name, question.number)

    async def _answer(self, question: Question) -> str:
        journal = self._journal
        journal.asked[question.name, question.number] += 1
        if journal.asked[question.name, question.number] > 1:
            self._fault(f"asked twice: {question}")
        journal.answering += 1
        self._outcomes["asked"] += 1
        try:
            match question.answers:
                case "slow":
                    await trio.sleep(self._chance.choice(TIMES))
                case "refuses":
                    raise CodedError(REFUSED, "no")
                case "hangs":
                    await trio.sleep_forever()
                case "calls" if self._client is not None:
                    await self._call(self._client, is_nested=True)
                case _:
                    pass
            answer = f"{question.name} {question.number}"
            journal.said[question.name].append(answer)
            return answer
        finally:
            journal.answering -= 1

    # Calls

    async def _call(self, client: Client, *, is_nested: bool = False) -> None:
        """Make a call that is answered, fails or is left, and check its end."""
        order, patience = self._new_order(is_nested=is_nested)
        # The calls of a question belong to the block around the call that is asked, unless they have one of their own.
        within = self._chance.choice(WITHIN if is_nested else (None, *WITHIN))
        held_up = (within or 0) + (max(WITHIN) if order.answers == "calls" else 0) + _ROUNDING
        told = self._told[order.name] = Told()
        endings = list[CallEnding]()
        outcome: Any = None
        left = trio.current_time() + patience
        scope = trio.CancelScope(deadline=left)
        if patience < BOUND and self._nursery is not None and self._chance.random() < 0.5:
            scope.deadline = math.inf  # the server is told of no deadline
            self._nursery.start_soon(_cancel_at, left, scope)
        try:
            with trio.move_on_after(BOUND) as bound, scope:
                if within is None:
                    outcome = await self._outcome(client, order, told)
                else:
                    with confirm_cancels(within=within) as endings:
                        outcome = await self._outcome(client, order, told)
        finally:
            told.is_answered, told.is_left = outcome is not None, outcome is None
            now, life = trio.current_time(), self._journal.orders[order.name]
            if endings:
                self._check_ending(order, life, endings)
        if bound.cancelled_caught:
            self._fault(f"never ended: {order}")
        elif outcome is not None:
            self._check_outcome(order, told, life, outcome)
        else:
            self._outcomes["left"] += 1
            if scope.cancelled_caught and now > left + held_up:
                self._fault(f"left for {now - left:g} s, within {within}: {order}, {endings}")
            if within is not None and len(endings) != 1 and scope.cancelled_caught:
                self._fault(f"left, and has {len(endings)} endings: {order}")

    def _new_order(self, *, is_nested: bool) -> tuple[Order, float]:
        chance = self._chance
        way = chance.choice(("return", "return", "return", "fail", "hang"))
        asks = 0 if is_nested or not self.route.asks else chance.choice((0, 0, 0, 1, 2))
        answers = chance.choice(("quick", "slow", "calls", "refuses", "hangs")) if asks else "quick"
        order = Order(
            f"{self.name} {next(self._numbers)}",
            chance.choice((0, 0, 1, 4)),
            asks,
            answers,
            chance.choice(TIMES),
            chance.choice((0, 0, 1, 2)),
            chance.choice((0.0, 0.0, 0.1, 1.0, 4.0)),
            way,
        )
        is_left = is_nested or "hang" in way + answers or chance.random() < 0.4
        return order, chance.choice((*TIMES, 8.0)) if is_left else BOUND * 2

    async def _outcome(self, client: Client, order: Order, told: Told) -> Done | Exception:
        """Return the answer of a call, or its error."""

        def progressed(progress: Any) -> None:
            told.progress.append(progress.progress)

        try:
            if self.route.has_extension and self._chance.random() < 0.7:
                return await client.request(run, order, on_progress=progressed)
            name = "work__run" if "gateway" in self.route.place.name else "run"
            result = await client.call_tool(name, {"order": attrs.asdict(order)}, on_progress=progressed)
            return Done(**(result.structured_content or {}))
        except MCPError as error:
            return error

    def _check_outcome(self, order: Order, told: Told, life: Life, outcome: Done | Exception) -> None:
        if told.progress != sorted(set(told.progress)):
            self._fault(f"progress {told.progress} of {order}")
        if isinstance(outcome, Done):
            self._outcomes["answered"] += 1
            self._check_answer(order, told, life, outcome)
            return
        code = outcome.code if isinstance(outcome, PeerError | CodedError) else None
        self._outcomes["lost" if code is None else f"error {code}"] += 1
        if not self._may_fail(order, code):
            self._fault(f"failed: {outcome!r}, {order}")
        if code == FAILED and (life.started, life.running, order.way) != (1, 0, "fail"):
            self._fault(f"failed with {life}: {order}")

    def _may_fail(self, order: Order, code: int | None) -> bool:
        """Return whether a call may fail with ``code``; `None` for a loss."""
        if code == FAILED:
            return order.way == "fail"
        if code in (UNANSWERED, REFUSED):
            return order.asks > 0 and (order.answers == "refuses" or not (self._is_calm and self.route.is_alone))
        return not self._is_calm or self._is_leaving

    def _check_answer(self, order: Order, told: Told, life: Life, done: Done) -> None:
        if (life.started, life.running, life.is_over) != (1, 0, True) or order.way != "return":
            self._fault(f"answered with {life}: {order}")
        if done != Done(order.name, [f"{order.name} {number}" for number in range(order.asks)]):
            self._fault(f"answered {done}: {order}")
        if order.asks != len(self._journal.said[order.name]):
            self._fault(f"said {self._journal.said[order.name]}: {order}")
        if self.route.has_extension and told.steps != list(range(order.count)):
            self._fault(f"answered, and told of {told.steps}: {order}")

    def _check_ending(self, order: Order, life: Life, endings: list[CallEnding]) -> None:
        (ending,) = endings[:1]
        self._outcomes[f"ended {ending.state}"] += 1
        if len(endings) > 1:
            self._fault(f"{len(endings)} endings of {order}")
        match ending.state:
            case "stopped":
                if life.running or (ending.never_ran and life.started):
                    self._fault(f"{ending} with {life}: {order}")
                self._journal.stopped[order.name] = (order, life.started, life.lines)
            case "finished":
                # What stands before the server may have answered by itself, and knows nothing of a server that it lost.
                is_sure = self._is_calm or not self.route.behind
                if (life.running and is_sure) or not (life.is_over or self.route.behind):
                    self._fault(f"{ending} with {life}: {order}")
            case "unsent":
                if life.started:
                    self._fault(f"{ending} with {life}: {order}")
            case "lost":
                if self._is_calm and not self._is_leaving:
                    self._fault(f"{ending}, and nobody has cut anything: {order}")
            case "unknown":
                if self._is_calm and not self.route.behind:
                    self._fault(f"{ending}: {order}")
            case "undeclared":
                if self.route.has_extension and self._is_calm:
                    self._fault(f"{ending}: {order}")
            case "overran" | "silent" | "relayed":
                pass
            case _:
                self._fault(f"{ending}: {order}")


async def _cancel_at(time: float, scope: trio.CancelScope) -> None:
    await trio.sleep_until(time)
    scope.cancel(reason="enough")
