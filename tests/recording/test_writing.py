"""Timestamps in a recording."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_mcp.recording.entries import RecordedEntry, Recording, WriteJob
from trio_mcp.recording.recorder import new_header


async def test_recorded_times_are_in_microseconds_since_the_header_was_written(autojump_clock: MockClock) -> None:
    jobs: list[WriteJob] = []

    def put(job: WriteJob) -> bool:
        jobs.append(job)
        return True

    await trio.sleep(50)
    recording = Recording(put, None, None, new_header("server", None))  # type: ignore[arg-type]
    begun = trio.current_time()
    recording.event("handler.began", 1)
    await trio.sleep(1000)
    recording.frame("in", b"{}")
    recording.frame("out", b"{}", begun + 2)
    recording.event("cleanup.done", 1)
    recording.event("cancel.received", 1, at=begun + 0.5)
    recording.event("cancel.received", 1, at=begun - 1)
    assert [job.t for job in jobs] == [0, 1_000_000_000, 2_000_000, 1_000_000_000, 500_000, -1_000_000]
    assert [job.entry.t for job in jobs if isinstance(job.entry, RecordedEntry)] == [
        0,
        1_000_000_000,
        500_000,
        -1_000_000,
    ]
