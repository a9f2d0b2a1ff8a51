"""The log of this package, written in a thread while something is served."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

import trio_mcp
from trio_mcp import PeerError, Server, open_memory
from trio_mcp.diagnostics.log import ThreadedSink, log_in_thread, peer_log_share, writer
from trio_mcp.diagnostics.log_shares import BURST, LogShares

logger = logging.getLogger("trio_mcp")


class Handler(logging.Handler):
    """Keeps what it is given. While ``closed``, it keeps whoever gives it waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.records: list[logging.LogRecord] = []
        self.threads: set[threading.Thread] = set()
        self.entered = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.threads.add(threading.current_thread())
        assert self.open.wait(PATIENCE)
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    logger.addHandler(handler)
    yield handler
    handler.open.set()
    assert writer.wait_until_written(PATIENCE)
    logger.removeHandler(handler)


async def test_log_records_are_written_directly_if_no_server_runs(handler: Handler) -> None:
    logger.warning("here")
    assert handler.threads == {threading.current_thread()}
    assert handler.messages == ["here"]


async def test_slow_log_handler_does_not_block_the_server(handler: Handler) -> None:
    async with log_in_thread():
        handler.open.clear()
        for number in range(3):
            logger.warning("record %d", number, extra={"number": number})
        handler.open.set()
    assert handler.messages == ["record 0", "record 1", "record 2"]
    assert threading.current_thread() not in handler.threads
    logger.warning("direct again")
    assert handler.messages[-1] == "direct again"
    assert threading.current_thread() in handler.threads


async def test_server_that_ends_waits_at_most_half_a_second_for_a_log_handler(handler: Handler) -> None:
    handler.open.clear()
    with trio.fail_after(PATIENCE):
        async with log_in_thread():
            logger.warning("late")
    assert handler.messages == []
    handler.open.set()
    assert writer.wait_until_written(PATIENCE)
    assert handler.messages == ["late"]


async def test_log_records_beyond_the_queue_limit_are_dropped_and_counted(handler: Handler) -> None:
    async with log_in_thread():
        handler.open.clear()
        logger.warning("first")
        assert await trio.to_thread.run_sync(handler.entered.wait, PATIENCE)
        for _ in range(1500):
            writer.put_record(logging.LogRecord("trio_mcp", logging.WARNING, "file.py", 1, "x", None, None))
        handler.open.set()
    assert writer.wait_until_written(PATIENCE)
    assert handler.messages == ["first"] + ["x"] * 999 + [
        "501 records were dropped: this log is written more slowly than it grows"
    ]


async def test_log_queue_limits_the_total_length_of_its_records(handler: Handler) -> None:
    async with log_in_thread():
        handler.open.clear()
        logger.warning("first")
        assert await trio.to_thread.run_sync(handler.entered.wait, PATIENCE)
        for _ in range(900):
            writer.put_record(logging.LogRecord("trio_mcp", logging.WARNING, "file.py", 1, "x" * 9000, None, None))
        handler.open.set()
    assert writer.wait_until_written(PATIENCE)
    assert len(handler.messages) < 500
    assert "records were dropped" in handler.messages[-1]


async def test_log_record_written_without_the_queue_keeps_the_exception_object(handler: Handler) -> None:
    async with log_in_thread():
        handler.open.clear()
        for number in range(3):
            try:
                raise ValueError(number)
            except ValueError:
                logger.exception("failed")
        handler.open.set()
    first, second, third = handler.records
    assert first.exc_info is not None
    assert second.exc_info is third.exc_info is None
    assert "ValueError: 2" in (third.exc_text or "")


async def test_exception_in_a_log_handler_loses_only_one_log_record(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_type))

    def emit(record: logging.LogRecord) -> None:
        if record.msg == "bad":
            raise OSError("the disk is full")
        handler.records.append(record)

    monkeypatch.setattr(handler, "emit", emit)
    async with log_in_thread():
        logger.warning("bad")
        logger.warning("good")
    assert told == [OSError]
    assert handler.messages == ["good"]


async def test_logging_levels_filters_and_propagation_of_the_application_apply_while_a_server_runs(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(record: logging.LogRecord) -> bool:
        return "secret" not in record.getMessage()

    root, before = Handler(), (logger.level, list(logger.handlers), logger.propagate)
    logging.getLogger().addHandler(root)
    monkeypatch.setattr(logger, "filters", [])
    try:
        async with log_in_thread():
            assert (logger.level, logger.handlers, logger.propagate) == before
            logger.addFilter(keep)  # later than we came, and heard all the same
            logger.setLevel(logging.ERROR)
            logger.warning("too low")
            logger.error("a secret")
            logger.error("seen")
            assert writer.wait_until_written(PATIENCE)
            logger.propagate = False
            logger.error("for its own handlers")
            assert writer.wait_until_written(PATIENCE)
            logger.propagate = True
            logger.disabled = True
            logger.error("nobody")
            logger.disabled = False
    finally:
        logger.setLevel(before[0])
        logging.getLogger().removeHandler(root)
    assert handler.messages == ["seen", "for its own handlers"]
    assert root.messages == ["seen"]
    assert (logger.level, logger.handlers, logger.propagate) == before


async def test_loggers_of_the_application_are_not_redirected_to_the_log_thread(handler: Handler) -> None:
    own = logging.getLogger("application")
    own.addHandler(handler)
    try:
        async with log_in_thread():
            own.warning("its own")
            assert handler.messages == ["its own"]
    finally:
        own.removeHandler(handler)
    assert handler.threads == {threading.current_thread()}


async def test_errors_of_trio_accept_loops_are_logged_in_the_log_thread_only_while_a_server_runs(
    handler: Handler,
) -> None:
    accepting = logging.getLogger("trio.serve_listeners")
    accepting.addHandler(handler)
    try:
        async with log_in_thread():
            accepting.error("accept returned %s", "EMFILE")
        assert threading.current_thread() not in handler.threads
        accepting.error("somebody else's")
    finally:
        accepting.removeHandler(handler)
    assert handler.messages == ["accept returned EMFILE", "somebody else's"]
    assert threading.current_thread() in handler.threads


async def test_loggers_of_other_libraries_are_not_limited_after_the_server_ends(handler: Handler) -> None:
    accepting = logging.getLogger("trio.serve_listeners")
    accepting.addHandler(handler)
    try:
        async with log_in_thread():
            async with log_in_thread():
                pass
            for _ in range(BURST + 1):
                accepting.error("during serving")
        assert handler.messages.count("during serving") == BURST
        for _ in range(BURST + 1):
            accepting.error("after serving")
        assert handler.messages.count("after serving") == BURST + 1
    finally:
        accepting.removeHandler(handler)


async def test_log_thread_ends_only_when_the_outermost_of_nested_blocks_ends(handler: Handler) -> None:
    async with log_in_thread():
        async with log_in_thread():
            logger.warning("inner")
        logger.warning("outer")
        assert writer.serving
    assert not writer.serving
    assert handler.messages == ["inner", "outer"]
    assert threading.current_thread() not in handler.threads


async def test_log_thread_ends_when_the_server_ends(handler: Handler) -> None:
    async with log_in_thread():
        logger.warning("x")
    (thread,) = handler.threads
    await trio.to_thread.run_sync(thread.join, PATIENCE)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_forked_child_writes_its_own_log_records(handler: Handler) -> None:
    async with log_in_thread():
        logger.warning("before")
        assert writer.wait_until_written(PATIENCE)
        if (child := os.fork()) == 0:
            status = 1
            try:
                logger.warning("in the child")
                status = 0 if handler.messages == ["before", "in the child"] else 2
            finally:
                os._exit(status)
        assert await trio.to_thread.run_sync(os.waitpid, child, 0) == (child, 0)


async def test_number_of_log_records_that_one_peer_can_cause_is_limited(handler: Handler) -> None:
    def log() -> None:
        for _ in range(BURST + 5):
            logger.warning("again")

    async def peer() -> None:
        with peer_log_share():
            log()
            async with trio.open_nursery() as nursery:  # what it starts counts for it
                nursery.start_soon(trio.to_thread.run_sync, log)

    for serving in (False, True):
        handler.records.clear()
        if serving:
            async with log_in_thread():
                await peer()
        else:
            await peer()
        assert handler.messages == ["again"] * BURST + [f"again … and {BURST + 10} more like it"]


async def test_each_connection_has_a_separate_limit_of_log_records(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        raise RuntimeError("oh dear")

    async def call() -> None:
        with contextlib.suppress(PeerError):
            assert (await client.call_tool("fail")).is_error

    async with open_memory(server) as other:
        async with open_memory(server) as client:
            for _ in range(50):
                await call()
        assert len([record for record in caplog.records if record.exc_info]) == BURST
        assert "and 40 more like it" in caplog.text
        client = other
        await call()
        assert len([record for record in caplog.records if record.exc_info]) == BURST + 1


async def test_log_limits_of_separate_trio_runs_are_independent(handler: Handler) -> None:
    async def log() -> None:
        for _ in range(BURST):
            logger.warning("again")

    for _ in range(3):
        await trio.to_thread.run_sync(trio.run, log)
    assert handler.messages == ["again"] * (3 * BURST)


async def test_exception_of_a_stream_that_the_log_thread_writes_is_raised_by_the_next_write(tmp_path: Path) -> None:
    with (tmp_path / "copy").open("w") as stream:
        sink = ThreadedSink(partial(print, end="", file=stream, flush=True))
        async with log_in_thread():
            sink.write("from a child\n")
        assert (tmp_path / "copy").read_text() == "from a child\n"
    sink.write("into nothing")
    assert writer.wait_until_written(PATIENCE)
    with pytest.raises(ValueError, match="closed file"):
        sink.write("more")


def test_all_modules_of_the_package_log_to_the_logger_trio_mcp() -> None:
    """Only what it is given goes through its share and its thread."""
    for path in Path(trio_mcp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
                (name,) = node.args
                if path.parent.name == "redis":  # what the client of Redis says of our connections is left out
                    assert ast.unparse(name) in ("'trio_mcp'", "'coredis'"), path
                elif path.parent.name != "diagnostics":
                    assert ast.unparse(name) == "'trio_mcp'", path


async def test_server_can_end_even_if_the_default_thread_limiter_of_trio_is_full(handler: Handler) -> None:
    limiter, ended = trio.to_thread.current_default_thread_limiter(), trio.Event()
    abandoned = [object() for _ in range(int(limiter.available_tokens))]  # their threads still run
    for one in abandoned:
        limiter.acquire_on_behalf_of_nowait(one)

    async def serve() -> None:
        async with log_in_thread():
            handler.open.clear()
            logger.warning("late")
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.move_on_after(PATIENCE):
            await ended.wait()
        in_time = ended.is_set()
        for one in abandoned:
            limiter.release_on_behalf_of(one)
    assert in_time


async def test_log_records_are_queued_if_the_log_thread_cannot_be_started(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with log_in_thread():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            logger.warning("one")
            assert not writer.wait_until_written(0)
        logger.warning("two")
    assert handler.messages == ["one", "two"]
    assert threading.current_thread() not in handler.threads


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_forked_while_another_thread_logs_can_log(handler: Handler) -> None:
    class Slow:
        def __str__(self) -> str:
            begun.set()
            assert goes_on.wait(PATIENCE)
            return "slow"

    begun, goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=logger.warning, args=("%s", Slow()))
    thread.start()
    assert begun.wait(PATIENCE)
    if (child := os.fork()) == 0:
        signal.alarm(int(PATIENCE))  # whatever it waits for
        try:
            logger.warning("in the child")
        finally:
            os._exit(len(handler.records))
    _, status = os.waitpid(child, 0)
    goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 1


async def test_summary_log_records_use_the_record_factory_of_the_application(handler: Handler) -> None:
    def marked(*values: Any, **others: Any) -> logging.LogRecord:
        record = before(*values, **others)
        record.mark = "the application's"
        return record

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(marked)
    try:
        async with log_in_thread():
            handler.open.clear()
            for _ in range(BURST + 5):
                logger.warning("again")
            for number in range(1500):
                writer.put(lambda: None, number)
            handler.open.set()
            assert writer.wait_until_written(PATIENCE)
        assert writer.wait_until_written(PATIENCE)
    finally:
        logging.setLogRecordFactory(before)
    told = handler.records[BURST:]
    assert len(told) == 2
    assert all(record.__dict__["mark"] == "the application's" for record in told)


def test_servers_in_several_threads_can_start_and_stop_concurrently(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second to leave does so between the steps of the first, if it can."""

    def leave(shares: LogShares) -> None:
        really_leave(shares)
        left.release()
        both_left.acquire(timeout=0.2)

    async def serve() -> None:
        async with log_in_thread():
            begun.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            errors.append(error)

    really_leave, begun = writer.leave, threading.Barrier(2, timeout=PATIENCE)
    left, both_left = threading.Semaphore(0), threading.Semaphore(0)
    errors: list[BaseException] = []
    monkeypatch.setattr(writer, "leave", leave)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert left.acquire(timeout=PATIENCE)
    both_left.release(2)
    for thread in threads:
        thread.join()
    assert errors == []
    assert not writer.serving
    assert "callHandlers" not in vars(logging.getLogger("trio.serve_listeners"))
