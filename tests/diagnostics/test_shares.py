"""Log limits: many records of one kind, from one peer or from many."""

from __future__ import annotations

import logging
import sys
import threading

import attrs
from tests.patience import PATIENCE

from trio_mcp.diagnostics.log_shares import BURST, OVERALL, WINDOW, LogShare, LogShares


@attrs.define
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Log:
    """The shares of a log whose clock stands still, and what they let out."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.woken = 0
        self.shares = LogShares(self.clock, self._woken)
        self.written: list[str] = []

    def _woken(self) -> None:
        self.woken += 1

    def record(self, line: int, text: str, error: Exception | None = None) -> logging.LogRecord:
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        return logging.LogRecord("trio_mcp", logging.WARNING, "file.py", line, "%s", (text,), exc_info)

    def log(self, share: LogShare, text: str, line: int = 1, error: Exception | None = None) -> None:
        record = self.record(line, text, error)
        if self.shares.admit(record, share):
            self.written.append(record.getMessage())

    def told(self) -> list[str]:
        return [record.getMessage() for record in self.shares.due()]


def raised(kind: type[Exception], place: int) -> Exception:
    try:
        if place == 0:
            raise kind("a")
        raise kind("b")
    except Exception:
        error = sys.exc_info()[1]
        assert isinstance(error, Exception)
        return error


def test_first_log_records_from_one_source_line_are_written_and_further_records_are_only_counted() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for number in range(BURST + 4312):
        log.log(peer, f"line {number} cannot be read")
    assert log.written == [f"line {number} cannot be read" for number in range(BURST)]
    assert log.told() == []
    log.clock.now += WINDOW
    assert log.told() == ["line 0 cannot be read … and 4,312 more like it"]
    assert log.told() == []


def test_log_records_of_a_limited_source_line_are_written_again_after_the_time_window() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for _ in range(3):
        for _ in range(BURST + 1):
            log.log(peer, "again")
        log.clock.now += WINDOW
        assert len(log.told()) == 1
    assert len(log.written) == 3 * BURST


def test_infrequent_log_records_are_all_written() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for _ in range(100):
        log.log(peer, "now and then")
        log.clock.now += WINDOW / BURST
    assert len(log.written) == 100
    assert log.told() == []


def test_log_limit_of_one_peer_does_not_affect_another_peer() -> None:
    log = Log()
    hostile, honest = LogShare(log.shares), LogShare(log.shares)
    for _ in range(1000):
        log.log(hostile, "hostile")
    log.log(honest, "honest")
    assert log.written == ["hostile"] * BURST + ["honest"]


def test_log_limit_reached_at_one_source_line_does_not_affect_another_source_line() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for _ in range(100):
        log.log(peer, "often", line=1)
    log.log(peer, "once", line=2)
    assert log.written[-1] == "once"


def test_log_records_share_a_limit_only_if_source_line_and_exception_match() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for _ in range(100):
        log.log(peer, "often", error=raised(ValueError, 0))
    log.log(peer, "elsewhere", error=raised(ValueError, 1))
    log.log(peer, "otherwise", error=raised(KeyError, 0))
    assert log.written[BURST:] == ["elsewhere", "otherwise"]


def test_number_of_log_records_of_many_short_lived_peers_is_limited_in_total() -> None:
    log = Log()
    for _ in range(OVERALL):
        peer = LogShare(log.shares)
        for _ in range(BURST + 1):
            log.log(peer, "and gone")
        log.written += [record.getMessage() for record in log.shares.close(peer)]
    assert len(log.written) == OVERALL
    log.clock.now += WINDOW
    (told,) = log.told()
    held_back = int(told.split()[-4].replace(",", ""))
    also_told = sum(int(line.split()[-4]) for line in log.written if "more like it" in line)
    assert held_back + also_told + len([line for line in log.written if line == "and gone"]) == OVERALL * (BURST + 1)


def test_suppressed_log_records_of_a_peer_are_summarised_when_the_peer_disconnects() -> None:
    log = Log()
    peer = LogShare(log.shares)
    for _ in range(BURST + 3):
        log.log(peer, "x")
    assert [record.getMessage() for record in log.shares.close(peer)] == ["x … and 3 more like it"]
    log.clock.now += WINDOW
    assert log.told() == []


def test_suppressed_log_records_are_summarised_at_the_end_of_serving() -> None:
    log = Log()
    for line in range(3):
        for _ in range(BURST + 1):
            log.log(log.shares.unattributed, f"line {line}", line=line)
    assert len(log.shares.due(at_end=True)) == 3
    assert log.shares.due(at_end=True) == []


def test_number_of_source_lines_that_the_log_limiter_counts_is_bounded() -> None:
    log = Log()
    peer = LogShare(log.shares)
    for line in range(10_000):
        log.log(peer, "x", line=line)
    assert len(peer.counts) < 200
    assert len(log.written) < 200
    log.clock.now += WINDOW
    assert sum(int(line.split()[-4].replace(",", "")) for line in log.told()) == 10_000 - len(log.written)
    log.log(peer, "seen", line=20_000)
    assert log.written[-1] == "seen", "what is over makes room"


def test_log_limiter_replaces_expired_counts_with_counts_for_new_source_lines() -> None:
    log = Log()
    peer = LogShare(log.shares)
    for line in range(100):
        log.log(peer, "x", line=line)
    log.clock.now += WINDOW
    log.written.clear()
    for line in (1000, 2000):
        for _ in range(BURST + 1):
            log.log(peer, f"line {line}", line=line)
    assert log.written == ["line 1000"] * BURST + ["line 2000"] * BURST
    log.clock.now += WINDOW
    assert log.told() == ["line 1000 … and 1 more like it", "line 2000 … and 1 more like it"]


def test_log_limiter_wakes_its_summary_task_when_the_first_record_is_suppressed() -> None:
    log, peer = Log(), LogShare(Log().shares)
    assert log.shares.due_in() is None
    for _ in range(BURST):
        log.log(peer, "x")
    assert log.woken == 0
    for _ in range(100):
        log.log(peer, "x")
    assert log.woken == 1
    assert log.shares.due_in() == WINDOW


def test_log_summary_quotes_the_beginning_of_the_first_suppressed_record() -> None:
    log, peer = Log(), LogShare(Log().shares)
    for _ in range(BURST + 1):
        log.log(peer, "a" * 100_000 + "\nb")
    log.clock.now += WINDOW
    (told,) = log.told()
    assert told.startswith("aaa")
    assert len(told) < 300


def test_logging_inside_str_of_a_log_argument_does_not_deadlock() -> None:
    log = Log()
    share = LogShare(log.shares)

    class Talkative:
        def __str__(self) -> str:
            log.log(share, "somebody looks at me", line=2)
            return "me"

    def admit() -> None:
        record = logging.LogRecord("trio_mcp", logging.WARNING, "file.py", 1, "%s", (Talkative(),), None)
        assert log.shares.admit(record, share)

    thread = threading.Thread(target=admit, daemon=True)  # so that a lock that is never released ends with the tests
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert set(log.written) == {"somebody looks at me"}


def test_caller_that_reconnects_within_the_time_window_keeps_the_same_log_limit() -> None:
    log = Log()
    for _ in range(BURST):
        log.log(log.shares.of("ada"), "x")
    log.log(log.shares.of("ada"), "one too many")
    log.log(log.shares.of("eve"), "another caller")
    log.clock.now += WINDOW - 1
    log.log(log.shares.of("ada"), "still too many")
    assert log.written == ["x"] * BURST + ["another caller"]
    log.clock.now += 1
    assert log.told() == ["x … and 2 more like it"]
    log.log(log.shares.of("ada"), "in the next window")
    assert log.written[-1] == "in the next window"


def test_log_limits_of_disconnected_callers_are_removed_after_the_time_window() -> None:
    log = Log()
    for number in range(100):
        log.log(log.shares.of(number), "x", line=number)
    assert len(log.shares._of_callers) == 100
    log.clock.now += WINDOW
    log.log(log.shares.of("ada"), "x")
    assert [*log.shares._of_callers] == ["ada"]
