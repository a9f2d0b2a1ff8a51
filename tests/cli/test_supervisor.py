"""The supervisor of workers, with fake workers, on a virtual clock."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio._core import _thread_cache
from trio.testing import wait_all_tasks_blocked

from trio_mcp.cli.supervisor import ReadyReport, Supervisor
from trio_mcp.cli.workers import open_worker

ENDS_WITHIN = 8.0


@attrs.define(eq=False)
class Fake:
    """A process that does what the test says."""

    pid: int
    heard: list[int | str] = attrs.Factory(list)
    is_frozen: bool = False
    status: int | None = None
    _report: ReadyReport | None = None
    _listens: trio.Event = attrs.Factory(trio.Event)
    _gone: trio.Event = attrs.Factory(trio.Event)

    async def ended(self) -> int:
        await self._gone.wait()
        assert self.status is not None
        return self.status

    async def listening(self) -> ReadyReport | None:
        await self._listens.wait()
        return self._report

    def retire(self) -> None:
        self.heard.append("retire")
        if not self.is_frozen:
            self.end(0)

    def send(self, number: int) -> None:
        self.heard.append(number)
        if self.status is None and (number == signal.SIGKILL or not self.is_frozen):
            self.end(-number)

    def listen(self) -> None:
        self._report = ReadyReport("fake", ENDS_WITHIN)
        self._listens.set()

    def fall_silent(self) -> None:
        """Live on, when no report can come any more."""
        self._listens.set()

    def end(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self._listens.set()
            self._gone.set()

    @property
    def is_starting(self) -> bool:
        return self.status is None and not self.heard and not self._listens.is_set()

    @property
    def is_serving(self) -> bool:
        return self.status is None and not self.heard and self._report is not None


class Fakes:
    """Fake processes, in the order of their starts, and what the supervisor reported."""

    def __init__(self) -> None:
        self.all: list[Fake] = []
        self.failures = 0
        """How many of the next starts fail."""
        self.reports: list[str] = []
        self.starts: list[float] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Fake]:
        self.starts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.all.append(fake := Fake(1000 + len(self.all)))
        try:
            yield fake
        finally:
            fake.end(-9)

    def starting(self) -> list[Fake]:
        return [each for each in self.all if each.is_starting]

    def serving(self) -> list[Fake]:
        return [each for each in self.all if each.is_serving]

    def alive(self) -> list[Fake]:
        return [each for each in self.all if each.status is None]


@asynccontextmanager
async def supervised(
    count: int, changes: AsyncIterator[object] | None = None
) -> AsyncIterator[tuple[Supervisor, Fakes]]:
    """A supervisor of ``count`` workers that all listen; it ends with the block."""
    fakes = Fakes()
    supervisor = Supervisor(fakes.open, count, lambda _: None, changes, fakes.reports.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        for _ in range(2):  # the first, then the others
            await settled(fakes)
        assert len(fakes.serving()) == count
        yield supervisor, fakes
        supervisor.stop()


async def settled(fakes: Fakes) -> None:
    """Let all that start listen, until none starts."""
    await wait_all_tasks_blocked()
    while fakes.starting():
        for each in fakes.starting():
            each.listen()
        await wait_all_tasks_blocked()


async def test_worker_that_dies_while_its_replacement_starts_is_replaced_once(autojump_clock: object) -> None:
    async with supervised(2) as (supervisor, fakes):
        first, second = fakes.all
        supervisor.reload()
        await wait_all_tasks_blocked()
        first.end(-9)
        await settled(fakes)
        assert len(fakes.serving()) == 2
        assert not {first, second} & set(fakes.serving())
        assert len(fakes.all) == 4


async def test_two_reloads_while_old_workers_finish_leave_the_configured_number_of_workers(
    autojump_clock: object,
) -> None:
    async with supervised(4) as (supervisor, fakes):
        for old in fakes.all:
            old.is_frozen = True  # each takes as long as it can
        for _ in range(2):
            supervisor.reload()
            await settled(fakes)
        assert len(fakes.serving()) == 4
        await trio.sleep(ENDS_WITHIN + 1)
        assert fakes.serving() == fakes.alive() == fakes.all[-4:]


async def test_reload_ends_replacement_workers_that_are_not_listening_yet(autojump_clock: object) -> None:
    async with supervised(2) as (supervisor, fakes):
        for _ in range(3):
            supervisor.reload()
            await wait_all_tasks_blocked()
        assert len(fakes.starting()) == 1
        assert [each.status for each in fakes.all[2:4]] == [-signal.SIGTERM] * 2
        assert fakes.serving() == fakes.all[:2], "nothing is lost meanwhile"
        await settled(fakes)
        assert fakes.serving() == fakes.all[-2:]


async def test_replacement_worker_that_does_not_react_is_killed_and_does_not_block_a_reload(
    autojump_clock: object,
) -> None:
    async with supervised(1) as (supervisor, fakes):
        supervisor.reload()
        await wait_all_tasks_blocked()
        (hanging,) = fakes.starting()
        hanging.is_frozen = True
        supervisor.reload()
        await settled(fakes)
        assert fakes.serving() == fakes.all[-1:]
        await trio.sleep(6)
        assert hanging.status == -signal.SIGKILL


async def test_supervisor_ends_a_replacement_worker_whose_status_pipe_closes(autojump_clock: object) -> None:
    async with supervised(1) as (supervisor, fakes):
        supervisor.reload()
        await wait_all_tasks_blocked()
        fakes.starting()[0].fall_silent()
        await wait_all_tasks_blocked()
        assert fakes.all[-1].status == -signal.SIGTERM
        assert fakes.serving() == fakes.all[:1]


async def test_second_reload_ends_a_worker_that_the_first_reload_is_starting(autojump_clock: object) -> None:
    async with supervised(1) as (supervisor, fakes):
        supervisor.reload()
        await trio.lowlevel.checkpoint()  # the start is decided
        supervisor.reload()
        await settled(fakes)
        assert fakes.serving() == fakes.alive() == fakes.all[-1:]


async def test_reload_of_a_program_that_no_longer_starts_keeps_all_old_workers(
    autojump_clock: object,
) -> None:
    async with supervised(3) as (supervisor, fakes):
        before = fakes.serving()
        supervisor.reload()
        await wait_all_tasks_blocked()
        fakes.starting()[0].end(1)
        await trio.sleep(1000)
        assert fakes.serving() == fakes.alive() == before
        assert fakes.reports == ["the new version did not start; the old one keeps running"]
        supervisor.reload()
        await settled(fakes)
        assert fakes.serving() == fakes.all[-3:]


async def test_supervisor_retries_a_worker_process_that_cannot_be_started(autojump_clock: object) -> None:
    async with supervised(1) as (_, fakes):
        fakes.failures = 3
        fakes.all[0].end(1)
        await trio.sleep(1 + 2 + 4 + 8 + 1)
        await settled(fakes)
        assert len(fakes.serving()) == 1
        assert "a worker could not be started: [Errno 11] Resource temporarily unavailable" in fakes.reports


async def test_workers_that_die_repeatedly_are_restarted_with_backoff(autojump_clock: object) -> None:
    async with supervised(1) as (supervisor, fakes):
        pauses: list[float] = []
        for _ in range(8):
            await settled(fakes)
            fakes.serving()[0].end(1)
            death = trio.current_time()
            await trio.sleep(31)
            pauses.append(fakes.starts[-1] - death)
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30])
        await settled(fakes)
        await trio.sleep(100)
        fakes.serving()[0].end(1)  # it was healthy before
        await wait_all_tasks_blocked()
        assert fakes.starting()
        await settled(fakes)
        fakes.serving()[0].end(1)
        await wait_all_tasks_blocked()
        assert not fakes.starting()
        supervisor.reload()  # which does not wait
        await wait_all_tasks_blocked()
        assert fakes.starting()


async def test_worker_that_ignores_sigterm_is_killed_when_the_shutdown_deadline_passes(autojump_clock: object) -> None:
    async with supervised(3) as (supervisor, fakes):
        fakes.all[1].is_frozen = True
        supervisor.stop()
        begun = trio.current_time()
    assert [each.status for each in fakes.all] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
    assert trio.current_time() - begun == pytest.approx(2)  # the block ends it a second time

    async with supervised(1) as (supervisor, fakes):
        fakes.all[0].is_frozen = True
        supervisor.stop()
        await trio.sleep(ENDS_WITHIN - 0.1)
        assert fakes.all[0].status is None
        await trio.sleep(0.2)
        assert fakes.all[0].status == -signal.SIGKILL


async def test_shutdown_while_workers_start_leaves_no_worker_process(autojump_clock: object) -> None:
    async with supervised(2) as (supervisor, fakes):
        supervisor.reload()
        await trio.lowlevel.checkpoint()
    assert not fakes.alive()


async def test_supervisor_exits_with_the_status_of_the_first_worker_if_it_fails(autojump_clock: object) -> None:
    fakes = Fakes()
    statuses: list[int] = []

    async def run() -> None:
        statuses.append(await Supervisor(fakes.open, 4, lambda _: None, report=fakes.reports.append).run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        fakes.all[0].end(7)
    assert statuses == [7]
    assert len(fakes.all) == 1


async def test_file_watcher_that_fails_is_reported_and_workers_continue(autojump_clock: object) -> None:
    async def changes() -> AsyncIterator[object]:
        raise FileNotFoundError(2, "No such file or directory", "/gone")
        yield

    async with supervised(1, changes()) as (_, fakes):
        assert len(fakes.serving()) == 1
        assert fakes.reports == [
            "files cannot be watched any more, so --reload has stopped working: "
            "FileNotFoundError(2, 'No such file or directory')"
        ]


async def test_supervisor_raises_os_error_if_it_cannot_start_the_worker_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    # trio would reuse an idle thread of an earlier test, without a start
    monkeypatch.setattr(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())
    limiter = trio.to_thread.current_default_thread_limiter()
    with pytest.raises(OSError, match="can't start new thread"):
        async with open_worker([], b"secret"):
            pass
    assert limiter.borrowed_tokens == 0


@pytest.mark.parametrize("seed", range(150))
async def test_configured_number_of_workers_with_the_latest_version_runs_after_random_events(
    autojump_clock: object, seed: int
) -> None:
    dice = random.Random(seed)
    count = dice.randint(1, 4)
    async with supervised(count) as (supervisor, fakes):

        def fail_next() -> None:
            fakes.failures += 1

        def one_of(fakes: Callable[[], list[Fake]], act: Callable[[Fake], object]) -> Callable[[], object]:
            return lambda: act(dice.choice(found)) if (found := fakes()) else None

        def freeze(fake: Fake) -> None:
            fake.is_frozen = True

        harmless = [
            supervisor.reload,
            one_of(fakes.starting, Fake.listen),
            one_of(fakes.starting, Fake.listen),
            one_of(fakes.starting, lambda fake: fake.end(1)),
            one_of(fakes.starting, Fake.fall_silent),
            one_of(fakes.alive, freeze),
            fail_next,
        ]
        deadly = [one_of(fakes.alive, lambda fake: fake.end(-9))]
        for _ in range(60):
            before = len(fakes.serving())
            events = [dice.choice([*harmless, *deadly]) for _ in range(dice.randint(1, 3))]
            for event in events:
                event()
                for _ in range(dice.choice((0, 0, 1, 2))):
                    await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert len(fakes.serving()) <= count
            assert len(fakes.starting()) <= count
            assert len(fakes.serving()) >= before or set(events) & set(deadly), "a reload costs no worker"
            if dice.random() < 0.3:
                await trio.sleep(dice.choice((0.1, 1, 10, 100)))
        fakes.failures = 0
        first_new = len(fakes.all)
        supervisor.reload()
        for _ in range(2 * count + 1):
            await settled(fakes)
            await trio.sleep(60)
        assert len(fakes.serving()) == count
        assert fakes.alive() == fakes.serving()
        assert not set(fakes.serving()) & set(fakes.all[:first_new]), "the last request wins everywhere"
    assert not fakes.alive()
