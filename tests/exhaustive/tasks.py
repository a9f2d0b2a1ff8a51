"""Tasks: two processes and a client that share one record in a real `MemoryTaskStore`, by the real
`TaskRecords.change`, the real transitions and the real table of a run's phases.

Events: the creation, the end of a handler, a question and its answer, a cancel by the client, a claim, a renewal, the
expiry of a lease at any step, a process that notices the expiry or another holder, the death of a process, and each
call of the store: it answers, fails, loses its acknowledgement, is lost, or happens later. The plan bounds how many
calls fail, how many leases expire while their holder lives or are renewed then, and how many processes die.

Invariants:

- A task ends once, and never changes after its end.
- No process writes a task that another one has claimed since, and no write replaces a record that its writer has not
  seen.
- A task is claimed only without a holder, or when the lease of its holder is over.
- No attempt begins twice unless it was given up in good order, and none beyond the limit.
- A client that heard that it cancelled the task finds it cancelled.
- A task waits for input exactly while it has a question without an answer.
- No run takes a step that the table of phases does not have.
- At the end, the task has ended, and no process runs it. A creation whose fate is unknown leaves no task.

A state is made again by replay, since coroutines cannot be copied. Of marks and holders a key has only which ones are
equal, and of epochs how far a run is behind, up to 2: nothing else is compared. The two processes are not alike, since
one creates the task, and are not exchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, cast

import attrs
from tests.exhaustive.explorer import Action, Fault
from tests.exhaustive.held_store import LEASE, Called, HeldStore, at_once
from tests.exhaustive.task_parties import NEW, Operation, Run, TaskPlan, content_of

from trio_mcp.stores.task_store import Outcome, TaskPhase, TaskRecord
from trio_mcp.tasks import transitions
from trio_mcp.tasks.records import TaskRecords, TaskSettings
from trio_mcp.tasks.transitions import RunPhase, RunStep, phase_after

__all__ = ["TaskWorld"]

_READ_FATES: Final = ("answers", "fails")
_WRITE_FATES: Final = ("answers", "fails", "loses the answer", "is lost", "is late")
_ATTEMPTS: Final = 2


class TaskWorld:
    """The processes, the client and the store."""

    def __init__(self, plan: TaskPlan) -> None:
        self.plan: Final = plan
        self.trace: list[Action] = []
        self.store = HeldStore()
        self.records = TaskRecords(TaskSettings(store=cast("Any", self.store)))
        self.left = attrs.asdict(plan)
        self.runs: dict[int, Run] = {}
        self.operations: dict[str, Operation] = {}
        self.creation = "open"
        self.claims = 0
        self.told_cancelled = False

    def fork(self) -> TaskWorld:
        world = TaskWorld(self.plan)
        for action in self.trace:
            world._happen(action)
        return world

    def do(self, action: Action) -> None:
        self._happen(action)
        self._check()

    def _happen(self, action: Action) -> None:
        self.trace.append(action)
        name, *of = action
        getattr(self, "_" + name)(*of)

    def key(self) -> Hashable:
        store, record = self.store, self.store.record
        mark, epoch = (b"", 0) if record is None else (record.mark, record.epoch)
        numbers: dict[str | None, int] = {None: 0}

        def named(holder: str | None) -> Hashable:
            return numbers.setdefault(holder, len(numbers)), holder and holder[0]

        def of(call: Called) -> Hashable:
            written = call.record and (content_of(call.record), call.record.mark == mark, named(call.record.holder))
            return written, call.expected_mark == mark, named(call.holder), call.give_up

        kept = record and (content_of(record), named(record.holder), record.leased_until < store.now)
        runs = tuple(
            (p, named(run.holder), min(epoch - run.epoch, 2), run.attempt, run.phase, run.held_until < store.now)
            for p, run in sorted(self.runs.items())
        )
        operations = tuple(
            (o.name, o.process, of(o.called), o.written == mark, o.tries, named(o.ours), o.until < store.now)
            for _, o in sorted(self.operations.items())
        )
        late = tuple(map(of, store.late))
        return (
            *(kept, named(store.owner), tuple(sorted(store.started)), late, runs, operations),
            *(tuple(self.left.values()), self.creation, self.told_cancelled, store.leased_until < store.now),
        )

    # What can happen

    def actions(self) -> Sequence[Action]:
        return [*self._of_store(), *self._of_processes(), *self._of_client()]

    def _fates(self, fates: Sequence[str]) -> Sequence[str]:
        return fates if self.left["failures"] else fates[:1]

    def _of_store(self) -> Iterator[Action]:
        store, record = self.store, self.store.record
        if self.creation == "open":
            yield from (("create", fate) for fate in self._fates(_WRITE_FATES))
        elif self.creation == "unknown":
            yield from (("discard", fate) for fate in self._fates(("answers", "loses the answer")))
        for name, operation in self.operations.items():
            fates = _READ_FATES if operation.called.record is None else _WRITE_FATES
            yield from (("deliver", name, fate) for fate in self._fates(fates))
        yield from (("arrive", number) for number in range(len(store.late)))
        if record is not None and record.holder is not None and store.leased_until >= store.now:
            is_used = any(run.holder == record.holder for run in self.runs.values()) or self.operations
            if not is_used or self.left["expiries"]:
                yield ("expire",)

    def _of_processes(self) -> Iterator[Action]:
        store, record = self.store, self.store.record
        for process, run in self.runs.items():
            is_idle = f"process {process}" not in self.operations
            if run.phase is RunPhase.RUNNING and is_idle:
                yield "finish", process
                if self.left["questions"]:
                    yield "ask", process
                if run.held_until < store.now:
                    yield "notice", process
                if record is None or record.phase.is_final or record.holder != run.holder:
                    yield "look", process
            if run.held_until < store.now and self.left["renewals"]:
                yield "renew", process
        for process in (0, 1):
            if self.left["deaths"] and (process in self.runs or f"process {process}" in self.operations):
                yield "die", process
            if self._is_free and f"claim of {process}" not in self.operations:
                yield from (("claim", process, fate) for fate in self._fates(("answers", "loses the answer")))

    def _of_client(self) -> Iterator[Action]:
        record = self.store.record
        if record is None or self.creation != "known":
            return
        if self.left["cancels"]:
            yield ("cancel",)
        if record.questions and "answer" not in self.operations:
            yield ("answer",)

    # Creation

    def _create(self, fate: str) -> None:
        self._spend(fate)
        phase = phase_after(RunPhase.POSSIBLE, RunStep.RECORD)
        record = self._created() if fate in ("answers", "loses the answer") else None
        if fate == "answers" and record is not None:
            self.creation = "known"
            self.runs[0] = Run(record, self.store.leased_until, phase_after(phase, RunStep.START))
        elif fate == "fails":
            phase_after(phase, RunStep.FAIL)
            self.creation = "refused"
        else:
            self.creation = "unknown"
            self.store.late = (Called(NEW),) if fate == "is late" else ()

    def _created(self) -> TaskRecord:
        store = self.store
        options = {"lease_ms": LEASE, "ttl_ms": None, "retention_ms": 10**6, "limit": 9, "scope_limit": 9}
        record = at_once(store.inner.create(NEW, **options))
        store.own("0:0")
        store.mark, store.started = record.mark, frozenset({1})
        return record

    def _discard(self, fate: str) -> None:
        self._spend(fate)
        at_once(self.store.inner.discard("task", retention_ms=10**9))
        self.store.owner = None
        self.creation = "discarded" if fate == "answers" else "unknown"

    def _arrive(self, number: int) -> None:
        store = self.store
        call = store.late[number]
        store.late = (*store.late[:number], *store.late[number + 1 :])
        if call.record is not NEW:
            store.write(call)
            return
        try:
            self._created()
        except ValueError:
            return  # its creation was given up

    # The store

    def _spend(self, fate: str) -> None:
        self.left["failures"] -= fate != "answers"

    def _expire(self) -> None:
        record = self.store.record
        assert record is not None
        is_used = any(run.holder == record.holder for run in self.runs.values()) or self.operations
        self.left["expiries"] -= bool(is_used and self.left["expiries"])
        self.store.now += 2 * LEASE

    def _operate(self, key: str, operation: Operation) -> None:
        self.operations[key] = operation
        operation.ours = operation.holder()
        if operation.process is not None and not (operation.ours or "").startswith(f"{operation.process}:"):
            raise Fault("a process writes under the claim of another one")
        operation.written, operation.tries = b"", 0
        operation.running = self.records.change("task", operation.ours, operation.transition)
        operation.called = operation.running.send(None)  # type: ignore[arg-type]

    def _deliver(self, key: str, fate: str) -> None:
        operation = self.operations[key]
        self._spend(fate)
        if operation.called.record is not None and fate not in ("answers", "fails"):
            operation.written, operation.tries = operation.called.record.mark, operation.tries + 1
        assert operation.running is not None
        try:
            operation.called = operation.running.send(fate)
        except StopIteration as end:
            del self.operations[key]
            self._operated(key, operation, end.value)
        except OSError:
            del self.operations[key]
            self._failed(key, operation)

    def _failed(self, key: str, operation: Operation) -> None:
        if operation.name in ("outcome", "release", "ask"):
            self._operate(key, operation)  # as `change_with_retries` does

    def _operated(self, key: str, operation: Operation, record: TaskRecord | None) -> None:
        process = operation.process
        match operation.name:
            case "cancel":
                self.told_cancelled = record is not None and record.phase is TaskPhase.CANCELLED
            case "reclaim" if record is not None and not record.phase.is_final:
                assert process is not None
                if operation.until < self.store.now:
                    self._release_claim(process, record, counts=False)
                else:
                    if record.attempt in self.store.started or record.attempt > _ATTEMPTS:
                        raise Fault(f"attempt {record.attempt} begins twice, or beyond the limit")
                    self.store.started |= {record.attempt}
                    self.runs[process] = Run(record, operation.until, RunPhase.RUNNING)
            case "outcome" | "release" if process in self.runs:
                assert process is not None
                run, kept = self.runs[process], self.store.record
                is_ours = kept is not None and (run.holder != operation.ours or run.reacquire(kept))  # type: ignore[arg-type]
                if record is None and is_ours:
                    self._operate(key, operation)
                else:
                    run.step(RunStep.CLOSE)
                    del self.runs[process]
            case _:
                pass

    # Processes

    def _write_end(self, process: int, name: str, transition: Any) -> None:
        run = self.runs[process]
        run.step(RunStep.END)
        self._operate(f"process {process}", Operation(name, process, lambda: run.holder, transition))

    def _finish(self, process: int) -> None:
        outcome = Outcome(f'"{process}"'.encode())
        self._write_end(process, "outcome", lambda record, now: transitions.with_outcome(record, now, outcome))

    def _notice(self, process: int) -> None:
        self._write_end(process, "release", lambda record, _: transitions.released(record, counts=False))

    def _ask(self, process: int) -> None:
        self.left["questions"] -= 1
        run = self.runs[process]
        question = {f"question {self.left['questions']}": b"{}"}
        asking = Operation("ask", process, lambda: run.holder, lambda kept, now: transitions.asked(kept, now, question))
        self._operate(f"process {process}", asking)

    def _look(self, process: int) -> None:
        run, record = self.runs[process], self.store.record
        if record is not None and not record.phase.is_final and run.accepts(record):  # type: ignore[arg-type]
            return
        for step in (RunStep.LOSE, RunStep.END, RunStep.CLOSE):
            run.step(step)
        del self.runs[process]

    def _renew(self, process: int) -> None:
        self.left["renewals"] -= 1
        run = self.runs[process]
        assert run.holder is not None
        if self.store.renew({"task": run.holder}):
            run.held_until = self.store.now + LEASE

    def _die(self, process: int) -> None:
        self.left["deaths"] -= 1
        self.runs.pop(process, None)
        for key in (f"process {process}", f"claim of {process}"):
            operation = self.operations.pop(key, None)
            if operation is not None and operation.running is not None:
                operation.running.close()

    @property
    def _is_free(self) -> bool:
        record, store = self.store.record, self.store
        return record is not None and record.is_open and store.leased_until < store.now

    def _claim(self, process: int, fate: str) -> None:
        self._spend(fate)
        self.claims += 1
        until = self.store.now + LEASE
        record = self.store.claim(f"{process}:{self.claims}", ("tool",))
        if record is None:
            raise Fault("a task without a living holder cannot be claimed")
        if fate != "answers":
            return
        run = self.runs.get(process)
        if run is None:
            attempt = record.attempt + 1
            reclaiming = Operation(
                "reclaim",
                process,
                lambda: record.holder,
                lambda kept, now: transitions.reclaimed(kept, now, attempt, _ATTEMPTS),
                until=until,
            )
            self._operate(f"claim of {process}", reclaiming)
        elif record.epoch <= run.epoch + 1:
            run.acquire(record, max(until, run.held_until))  # type: ignore[arg-type]
            if record.attempt < run.attempt:
                self._release_claim(process, record)
        else:  # what another run has done meanwhile is not known to this one
            if run.phase is RunPhase.RUNNING and f"process {process}" not in self.operations:
                self._notice(process)
            self._release_claim(process, record)

    def _release_claim(self, process: int, record: TaskRecord, *, counts: bool = True) -> None:
        releasing = Operation(
            "release of claim",
            process,
            lambda: record.holder,
            lambda kept, _: transitions.released(kept, counts=counts),
        )
        self._operate(f"claim of {process}", releasing)

    # The client

    def _cancel(self) -> None:
        self.left["cancels"] -= 1
        cancelling = Operation(
            "cancel", None, lambda: None, lambda kept, now: transitions.cancelled(kept, now, "enough")
        )
        self._operate("cancel", cancelling)

    def _answer(self) -> None:
        record = self.store.record
        assert record is not None
        answers = dict.fromkeys(record.questions, b"{}")
        answering = Operation("answer", None, lambda: None, lambda kept, now: transitions.answered(kept, now, answers))
        self._operate("answer", answering)

    # Invariants

    def _check(self) -> None:
        record, store = self.store.record, self.store
        if record is None:
            return
        if not self._is_free and store.claim("nobody", ("tool",)) is not None:
            raise Fault("a task that is not free is claimed")
        if store.end is not None and store.end != (record.phase, record.outcome, record.cancel_reason):
            raise Fault("a task changes after its end")
        if self.told_cancelled and record.phase is not TaskPhase.CANCELLED:
            raise Fault("a task that was cancelled is not")
        if not record.phase.is_final and bool(record.questions) != (record.phase is TaskPhase.INPUT_REQUIRED):
            raise Fault("a task waits for input without a question, or has a question and does not wait")
        if record.phase.is_final and (record.holder is not None or record.questions or record.answers):
            raise Fault("a task that has ended keeps what only a run needs")

    def check_end(self) -> None:
        record = self.store.record
        if record is not None and (self.creation != "known" or not record.phase.is_final):
            raise Fault(f"at the end, the creation is {self.creation} and the task {record.phase}")
        if self.runs:
            raise Fault("a process runs a task that has ended")
