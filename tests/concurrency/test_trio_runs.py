"""Calls into the trio thread from any other thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio

from trio_mcp.concurrency import threads
from trio_mcp.concurrency.threads import ActiveRuns, TrioRun, current_run


def run_of_another_thread() -> tuple[TrioRun, Callable[[], None]]:
    """A run of trio in a thread, and the function that ends it and waits for its end."""
    begun, made = threading.Event(), list[TrioRun]()
    end = trio.Event()

    async def main() -> None:
        made.append(current_run())
        begun.set()
        await end.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    begun.wait()

    def stop() -> None:
        made[0].call_soon(end.set)
        thread.join()

    return made[0], stop


async def test_call_method_of_the_current_trio_run_calls_a_function_directly_if_used_in_the_trio_thread() -> None:
    run, thread = current_run(), threading.get_ident()
    assert run is current_run()
    assert run.is_here
    assert run.is_current
    assert run.call(threading.get_ident) == thread


def test_function_current_run_raises_runtime_error_outside_of_trio() -> None:
    with pytest.raises(RuntimeError):
        current_run()


async def test_function_called_from_a_thread_runs_in_the_trio_thread_and_returns_its_result() -> None:
    run, thread = current_run(), threading.get_ident()
    assert await trio.to_thread.run_sync(run.call, threading.get_ident) == thread
    assert await trio.to_thread.run_sync(run.call, trio.lowlevel.in_trio_run)


async def test_function_called_in_trio_raises_its_exception_in_the_calling_thread() -> None:
    run = current_run()
    with pytest.raises(ZeroDivisionError):
        await trio.to_thread.run_sync(run.call, lambda: 1 / 0)


def test_function_passed_to_a_trio_run_from_another_trio_run_runs_in_the_first_run() -> None:
    run, stop = run_of_another_thread()

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        assert not run.is_here
        assert run.call(current_run) is run is not current_run()

    try:
        trio.run(main)
    finally:
        stop()


def test_function_called_after_the_end_of_the_trio_run_raises_run_finished_error() -> None:
    run, stop = run_of_another_thread()
    stop()
    with pytest.raises(trio.RunFinishedError):
        run.call(list)
    assert not run.call_soon(list)


async def test_function_called_in_a_blocked_trio_thread_raises_runtime_error_and_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "CALL_TIMEOUT", 0.01)
    run, ran, failures = current_run(), list[int](), list[BaseException]()

    def change() -> None:
        try:
            run.call(partial(ran.append, 1))
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()  # trio's thread is blocked here
    assert "so the call was not made: a trio task waits for this thread without await" in str(failures[0])
    await trio.testing.wait_all_tasks_blocked()
    assert ran == []


async def test_idempotent_function_scheduled_several_times_from_a_thread_runs_once_in_trio() -> None:
    run, ran = current_run(), list[int]()
    thread = threading.Thread(target=lambda: [run.call_soon(ran.append, 1, idempotent=True) for _ in range(5)])
    thread.start()
    thread.join()
    assert ran == []
    await trio.testing.wait_all_tasks_blocked()
    assert ran == [1]


def test_object_that_belongs_to_a_trio_run_raises_if_another_thread_uses_the_object() -> None:
    run, stop = run_of_another_thread()
    try:
        run.call(partial(run.check, "a client"))
        with pytest.raises(RuntimeError, match=r"a client belongs to a trio\.run in another thread"):
            run.check("a client")
    finally:
        stop()


def test_function_runs_in_the_calling_thread_if_no_trio_run_is_registered() -> None:
    home = ActiveRuns()
    assert home.call_in_run(threading.get_ident) == threading.get_ident()


async def test_function_runs_in_the_thread_of_a_trio_run_only_while_the_run_is_registered() -> None:
    home, here = ActiveRuns(), threading.get_ident()
    with home.register(), home.register():
        assert await trio.to_thread.run_sync(home.call_in_run, threading.get_ident) == here
        assert home.call_in_run(threading.get_ident) == here
    assert await trio.to_thread.run_sync(home.call_in_run, threading.get_ident) != here


def test_function_runs_in_the_calling_thread_if_the_registered_trio_run_has_crashed() -> None:
    home = ActiveRuns()
    run, stop = run_of_another_thread()
    entered = home.register()
    run.call(entered.__enter__)
    stop()
    assert home.call_in_run(threading.get_ident) == threading.get_ident()


async def test_function_call_raises_if_trio_runs_in_two_threads_are_registered() -> None:
    home, changed = ActiveRuns(), list[int]()
    run, stop = run_of_another_thread()
    entered = home.register()
    run.call(entered.__enter__)
    try:
        with home.register(), pytest.raises(RuntimeError, match="create one server for each thread"):
            home.call_in_run(partial(changed.append, 1))
        assert changed == []
    finally:
        run.call(lambda: entered.__exit__(None, None, None))
        stop()
    home.call_in_run(partial(changed.append, 1))
    assert changed == [1]
