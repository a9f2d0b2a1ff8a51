"""Interrupts at the start and at the end of a blocking call."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.bridging.seen import Seen, threads
from tests.patience import PATIENCE

from trio_mcp import blocking
from trio_mcp.bridging import calls
from trio_mcp.bridging.calls import BridgedCall, TrioPortal, run_blocking


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    for thread in threads():
        thread.join(PATIENCE)
    assert threads() == []


def begin_interrupted(work: BridgedCall[Any]) -> TrioPortal:
    thread = TrioPortal.start(work)
    signal.raise_signal(signal.SIGINT)
    return thread


def test_ctrl_c_just_after_a_blocking_call_starts_cancels_the_call() -> None:
    reasons: list[str] = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(str(cancelled))
            raise

    with pytest.raises(KeyboardInterrupt):
        run_blocking(begin_interrupted, lambda _: wait())
    assert "Ctrl-C" in reasons[0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blocking_client_is_closed_if_ctrl_c_arrives_while_it_opens(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin: Any = TrioPortal.start
    monkeypatch.setattr(TrioPortal, "start", lambda work: (begin(work), signal.raise_signal(signal.SIGINT))[0])
    with pytest.raises(KeyboardInterrupt), blocking.open_memory(seen.server):
        pytest.fail("the interrupt was lost")


def test_blocking_call_raises_immediately_if_its_thread_cannot_be_started() -> None:
    def fail(_: BridgedCall[Any]) -> TrioPortal:
        raise RuntimeError("no more threads")

    async def nothing() -> None: ...

    with pytest.raises(RuntimeError, match="no more threads"):
        run_blocking(fail, lambda _: nothing())


class TakesOne(queue.SimpleQueue[Any]):
    """A queue whose first item is taken by an interrupt."""

    taken = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if not self.taken:
            self.taken = True
            signal.raise_signal(signal.SIGINT)
        return item


def test_ctrl_c_while_a_blocking_call_ends_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.queue, "SimpleQueue", TakesOne)

    async def nothing() -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run_blocking(TrioPortal.start, lambda _: nothing())
