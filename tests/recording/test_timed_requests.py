"""Merging the times of client and server for one request."""

from __future__ import annotations

import pytest

from trio_mcp.recording.entries import Reference
from trio_mcp.recording.reading import Tick, TimedRequest


def request(*ticks: float, more: int = 0, **times: float) -> TimedRequest:
    made = TimedRequest(1, "client", "tools/call", more_ticks=more, **times)
    made.ticks += [Tick(at, "progress") for at in ticks]
    return made


@pytest.mark.parametrize(
    ("mine", "theirs", "taken"),
    [
        (request(1, more=2, sent=0.0), request(3, more=4, received=0.0), "theirs"),
        (request(1, more=2, received=0.0), request(3, more=4, sent=0.0), "mine"),
        (request(sent=0.0), request(3, more=4, received=0.0), "theirs"),
        (request(received=0.0), request(3, more=4, sent=0.0), "theirs"),
        (request(1, more=2, sent=0.0), request(received=0.0), "mine"),
        (request(1, more=2, sent=0.0), request(sent=0.0), "mine"),
    ],
)
def test_timeline_takes_the_times_of_progress_from_the_recording_of_the_sender(
    mine: TimedRequest, theirs: TimedRequest, taken: str
) -> None:
    expected = (mine if taken == "mine" else theirs).ticks, (mine if taken == "mine" else theirs).more_ticks
    mine.complete(theirs)
    assert (mine.ticks, mine.more_ticks) == expected


def test_timeline_includes_times_that_only_one_of_the_two_recordings_contains() -> None:
    mine, theirs = request(sent=1.0, answered=5.0), request(sent=9.0, received=2.0, done=4.0)
    theirs.cause, theirs.asked, theirs.failed = "peer", Reference("r", 1), True
    mine.complete(theirs)
    assert (mine.sent, mine.received, mine.done, mine.answered) == (1.0, 2.0, 4.0, 5.0)
    assert (mine.cause, mine.asked, mine.failed) == ("peer", Reference("r", 1), True)
    mine.complete(request(received=3.0))
    assert (mine.received, mine.cause, mine.failed) == (2.0, "peer", True)
