"""PRG: progress notifications of a server in another process."""

from __future__ import annotations

from typing import Any

import pytest
from tests.interaction.harness import resident_bytes
from tests.interaction.raw_client import (
    LATEST_LEGACY,
    REVISIONS,
    RawClient,
    Start,
    across,
    is_same,
)

TOKENS: list[Any] = [0, -1, "", "0", 9007199254740993, 7, "7", "🦑"]
NO_TOKENS: list[Any] = [True, 1.5, None, [], {}]


def test_prg_01_progress_keeps_type_and_value_of_the_token(client: RawClient) -> None:
    for token in TOKENS:
        assert client.text(client.call("progress", {"values": [1]}, token=token)) == "sent 1"
        assert len(client.progress_of(token)) == 1, token
    tokens = [params["progressToken"] for params in client.notifications("notifications/progress")]
    assert all(is_same(came, sent) for came, sent in zip(tokens, TOKENS, strict=True)), tokens


def test_prg_01_call_with_invalid_progress_token_is_served_without_progress(client: RawClient) -> None:
    for token in [*NO_TOKENS, ...]:
        assert client.text(client.call("progress", {"values": [1, 2]}, token=token)) == "sent 0"
    assert client.finish() == 0
    assert client.notifications("notifications/progress") == []
    assert client.stderr() == ""


def test_prg_02_only_increasing_finite_progress_values_are_sent(client: RawClient) -> None:
    request_id = client.call("progress", {"values": [1, 1, 0.5, "NaN", "Infinity", 2]}, token="t")
    client.result(request_id)
    assert client.finish() == 0
    assert [params["progress"] for params in client.progress_of("t")] == [1, 2]


def test_prg_02_latest_progress_is_sent_before_the_response_and_no_progress_after_the_response(
    client: RawClient,
) -> None:
    """At most one per 100 ms, and the last one kept is sent all the same (ruling 12)."""
    request_id = client.call("progress", {"values": list(range(1, 101))}, token="t")
    client.result(request_id)
    assert client.finish() == 0
    values = [params["progress"] for params in client.progress_of("t")]
    assert values[-1] == 100
    last = max(place for place, m in enumerate(client.messages) if m.get("method") == "notifications/progress")
    reply = next(place for place, m in enumerate(client.messages) if is_same(m.get("id"), request_id))
    assert last < reply
    assert len(values) <= most_values(client, request_id)


def test_first_progress_value_of_a_call_is_sent_immediately(client: RawClient) -> None:
    client.result(client.call("progress", {"values": list(range(1, 101))}, token="t"))
    assert client.finish() == 0
    assert next(params["progress"] for params in client.progress_of("t")) == 1


def most_values(client: RawClient, request_id: Any) -> float:
    """How many values may go out in the time that a handler took: one per 100 ms, and one at either end."""
    start, end = (client.journal.wait_for(event, call=request_id)[0]["t"] for event in ("start", "end"))
    return (end - start) / 0.1 + 2


def test_prg_02_progress_notifications_send_integers_as_integers_and_fractions_as_fractions(client: RawClient) -> None:
    client.result(client.call("progress", {"values": [1], "total": 3}, token="i"))
    client.result(client.call("progress", {"values": [0.5], "total": 1.5}, token="f"))
    (whole,) = client.progress_of("i")
    (fraction,) = client.progress_of("f")
    assert (type(whole["progress"]), whole["progress"]) == (int, 1)
    assert (fraction["progress"], fraction["total"]) == (0.5, 1.5)
    assert whole["total"] == 3


@pytest.mark.parametrize(("transport", "revision"), across(REVISIONS))
def test_prg_02_progress_message_is_omitted_in_revision_2024_11_05(start: Start, revision: str) -> None:
    with start(revision=revision) as client:
        client.result(client.call("progress", {"values": [1], "total": 2}, token="t"))
        (params,) = client.progress_of("t")
        assert params == {
            "progressToken": "t",
            "progress": 1,
            "total": 2,
            **({} if revision == "2024-11-05" else {"message": "at 1"}),
        }


def test_prg_03_progress_after_the_end_of_a_request_is_not_sent(client: RawClient) -> None:
    """After a result, after a failure, and after a cancel: the task that lives on reports to nobody."""
    ids: dict[str, Any] = {}
    for then in ("return", "raise", "wait"):
        ids[then] = client.call("late_progress", {"ms": 200, "then": then}, token=then, log_level="debug")
        client.journal.wait_for("start", call=ids[then])
    client.cancel(ids["wait"])
    client.result(ids["return"])
    assert client.result(ids["raise"])["isError"] is True
    client.journal.wait_for("later", tool="late_progress", count=3)
    client.ping()
    assert client.finish() == 0
    for then, request_id in ids.items():
        (late,) = client.journal.entries("late", call=request_id)
        assert late["sent"] is False
        assert all(params["progress"] != 99 for params in client.progress_of(then))
    assert client.logged() == []
    assert client.replies(ids["wait"]) == []


def test_prg_06_slow_reader_gets_a_bounded_number_of_progress_notifications_and_the_last_value(start: Start) -> None:
    """The reader takes one message at a time and looks away in between, as one that reads ten a second would.

    It must not be slower than the flood takes: what is bounded is memory, and that the handler ends.
    """
    with start(limits={"progress_interval": 0.0}, revision=LATEST_LEGACY) as client:
        client.ping()
        before = resident_bytes(client.pid)
        request_id = client.call("flood", {"kind": "progress", "n": 100_000}, token="t")
        # Nothing is read until the handler has ended: the slowest reader there is.
        client.journal.wait_for("end", call=request_id, bound=60)
        assert resident_bytes(client.pid, peak=True) - before < 50 * 2**20
        assert client.text(request_id) == "sent 100000"
        values = [params["progress"] for params in client.progress_of("t")]
        assert values[-1] == 100_000
        assert values == sorted(set(values))
        assert len(values) < 100_000, "values that waited were replaced by later ones"


def test_prg_06_default_progress_interval_limits_how_many_notifications_are_sent(client: RawClient) -> None:
    request_id = client.call("flood", {"kind": "progress", "n": 100_000}, token=0)
    client.text(request_id, bound=60)
    values = [params["progress"] for params in client.progress_of(0)]
    assert values[-1] == 100_000
    assert len(values) <= most_values(client, request_id)
