"""CAN: cancel notifications to a server in another process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.interaction.harness import is_alive, threads_of, wait_until
from tests.interaction.raw_client import LATEST_LEGACY, LEGACY, RawClient, Start, across, serving
from tests.interaction.wires import WebSocketWire
from tests.patience import PATIENCE


def test_can_01_cancelled_handler_stops_and_is_not_answered(client: RawClient) -> None:
    client.started("sleep", {"ms": 60_000}, id=5)
    client.silent_about(5)
    client.cancel(5, "user")
    client.ping()
    client.journal.wait_for("finally", call=5)
    assert client.journal.events(5) == ["start", "cancelled", "finally"]
    assert client.finish() == 0
    assert client.replies(5) == []


def test_can_01_handler_can_read_reason_and_cause_of_its_cancel(client: RawClient) -> None:
    client.started("sleep", {"ms": 60_000}, id=5)
    client.started("sleep", {"ms": 60_000}, id=6)
    client.cancel(5, "the user pressed Esc")
    client.cancel(6, None)
    (with_reason,) = client.journal.wait_for("cancelled", call=5)
    (without,) = client.journal.wait_for("cancelled", call=6)
    assert (with_reason["cause"], with_reason["reason"]) == ("peer", "the user pressed Esc")
    assert (without["cause"], without["reason"]) == ("peer", None)


@pytest.mark.parametrize("then", ["return", "raise"])
def test_can_01_handler_that_swallows_its_cancel_is_not_answered(client: RawClient, then: str) -> None:
    client.started("stubborn", {"ms": 60_000, "then": then}, id="s")
    client.silent_about("s")
    client.cancel("s")
    client.journal.wait_for("finally", call="s")
    assert client.echo("still there") == "still there"
    assert client.finish() == 0
    assert client.replies("s") == []


def test_can_01_server_sends_no_result_progress_or_log_after_a_cancel(client: RawClient) -> None:
    """Neither its result nor its progress nor its logs (ruling 1); a ping marks the place of the cancel,
    over HTTP behind the end of the answer, since answers on two connections come in no order."""
    client.call("chatter", {"n": 3000}, id=5, token="t", log_level="debug")
    client.journal.wait_for("start", call=5)
    client.cancel(5)
    client.wire.read_answer(5)
    client.ping()
    logs = len(client.logged())
    client.silent_about(5, token="t")
    client.ping()
    client.journal.wait_for("finally", call=5)
    assert client.finish() == 0
    assert len(client.logged()) == logs
    assert client.replies(5) == []


def test_can_01_cancel_matches_request_id_including_its_json_type(client: RawClient) -> None:
    client.started("sleep", {"ms": 300}, id=1)
    client.started("sleep", {"ms": 60_000}, id="1")
    client.silent_about("1")
    client.cancel("1")
    client.journal.wait_for("finally", call="1")
    assert client.text(1) == "slept 300"
    assert client.finish() == 0


def test_can_02_server_still_answers_after_two_hundred_cancelled_calls(client: RawClient) -> None:
    for number in range(200):
        request_id = client.started("sleep", {"ms": 60_000})
        client.silent_about(request_id)
        client.cancel(request_id)
        assert client.echo(str(number)) == str(number)
    client.journal.wait_for("finally", tool="sleep", count=200)
    assert client.finish() == 0
    assert client.stderr() == ""


CANCELS: dict[str, Any] = {
    "an unknown id": {"requestId": 4711},
    "a completed id": {"requestId": "done"},
    "no requestId": {"reason": "why not"},
    "null": {"requestId": None},
    "a boolean": {"requestId": True},
    "a fraction": {"requestId": 1.0},
    "an object": {"requestId": {}},
    "empty params": {},
    "a list as params": [],
    "no params": None,
    "null as _meta": {"requestId": 4711, "_meta": None},
    "a reason of the wrong type": {"requestId": 4711, "reason": {"a": 1}},
    "extra members": {"requestId": 4711, "extra": 1, "_meta": {"x/y": 1}},
}


def test_can_05_server_ignores_malformed_cancels_and_cancels_with_unknown_request_ids(client: RawClient) -> None:
    assert client.text(client.call("echo", {"text": "x"}, id="done")) == "x"
    survivor = client.held(id=1)
    before = len(client.messages)
    for params in CANCELS.values():
        client.notify("notifications/cancelled", params)
    client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":null}\n')
    client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4711},"more":true}\n')
    client.ping()
    assert len(client.messages) == before + 1
    client.let_go()
    assert client.text(survivor) == "let go"
    assert client.finish() == 0
    assert client.stderr() == ""


def test_can_05_cancel_whose_reason_has_a_wrong_type_still_cancels_the_request(client: RawClient) -> None:
    client.started("sleep", {"ms": 60_000}, id=1)
    client.notify("notifications/cancelled", {"requestId": 1, "reason": {"not": "a string"}, "extra": 1})
    (entry,) = client.journal.wait_for("cancelled", call=1)
    assert entry["reason"] is None


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY))
def test_can_09_cancel_of_initialize_is_ignored(start: Start, revision: str) -> None:
    with start() as client:
        opening = client.message("initialize", client.opening(revision), id="init")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "init"}}
        client.write(b"".join(_line(message) for message in (cancel, opening, cancel)))
        assert client.result("init")["protocolVersion"] == revision
        client.cancel("init")
        client.notify("notifications/initialized")
        assert client.echo("works") == "works"


def test_can_14_cleanup_of_cancelled_handler_runs_once_while_other_calls_run(start: Start, era: str) -> None:
    with start(revision=era, limits={"cleanup_grace": PATIENCE}) as client:
        client.started("cleanup", {"until": client.gate, "child": True}, id=1)
        (child,) = client.journal.wait_for("child", call=1)
        client.silent_about(1)
        client.cancel(1)
        client.journal.wait_for("cleaning", call=1)
        client.cancel(1, "again")
        assert client.echo("meanwhile") == "meanwhile", "without waiting for the cleanup"
        client.let_go()
        client.journal.wait_for("finally", call=1)
        client.cancel(1, "and again")
        assert not is_alive(child["pid"])
        assert client.finish() == 0
        assert client.journal.events(1) == ["start", "child", "cleaning", "cancelled", "finally"]
        assert client.replies(1) == []
        assert client.stderr() == ""


def test_can_14_cleanup_that_exceeds_cleanup_grace_is_reported_and_frees_the_request_slot(start: Start) -> None:
    with start(limits={"cleanup_grace": 0.1, "max_in_flight": 1}, revision=LATEST_LEGACY) as client:
        client.started("cleanup", {"until": client.gate}, id=1)
        client.cancel(1)
        assert client.echo("in its place") == "in its place"  # the only slot was given to this one
        wait_until(lambda: "still runs" in client.stderr())
        wait_until(lambda: "fixture_server.py" in client.stderr())  # the report names the line where the handler is
        client.let_go()
        client.journal.wait_for("finally", call=1)
        assert client.finish() == 0


def test_can_16_busy_worker_threads_do_not_block_other_calls_or_cancels(client: RawClient) -> None:
    places = 14 if isinstance(client.wire, WebSocketWire) else 40  # one of many connections gets a third
    ids = [client.call("thread_sleep", {"ms": 30_000}) for _ in range(50)]
    running = [entry["call"] for entry in client.journal.wait_for("start", tool="thread_sleep", count=places)]
    waiting = next(request_id for request_id in ids if request_id not in running)
    client.ping()
    assert client.echo("async") == "async"
    for request_id in (waiting, running[0]):  # the waiting one first, or it would get the other's thread
        client.silent_about(request_id)
        client.cancel(request_id)
    (flag,) = client.journal.wait_for("flag", call=running[0])
    (end,) = client.journal.wait_for("end", call=running[0])  # the thread ended by itself, and says nothing
    assert flag["t"] <= end["t"]
    client.ping()
    assert client.echo("still") == "still"
    assert client.journal.events(waiting) == [], "cancelled before it first ran, so it never runs"
    for request_id in ids:
        client.cancel(request_id)
    client.journal.wait_for("flag", tool="thread_sleep", count=places)
    assert client.finish() == 0
    assert not any(client.replies(request_id) for request_id in ids)


@pytest.mark.commands
def test_can_16_thread_that_ignores_its_cancel_does_not_block_the_exit_of_the_server(tmp_path: Path) -> None:
    """A thread cannot be killed: past the grace it is abandoned, and the process exits without it."""
    script = tmp_path / "deaf.py"
    script.write_text(
        "import time, trio\n"
        "from trio_mcp import Limits, Server, serve_stdio\n"
        "server = Server('deaf', limits=Limits(cleanup_grace=0.1, drain_timeout=0.1))\n"
        "@server.tool\n"
        "def deaf() -> str:\n"
        "    time.sleep(120)\n"
        "    return 'late'\n"
        "@server.tool\n"
        "async def echo(text: str) -> str:\n"
        "    return text\n"
        "trio.run(serve_stdio, server)\n"
    )
    with serving(tmp_path, command=[sys.executable, str(script)], revision=LATEST_LEGACY) as client:
        threads = threads_of(client.pid)
        client.call("deaf", id=1)
        wait_until(lambda: threads_of(client.pid) > threads)
        client.silent_about(1)
        client.cancel(1)
        assert client.echo("on") == "on"
        assert client.finish() == 0


def test_cancel_is_handled_before_queued_requests(start: Start) -> None:
    """Ruling 4: a cancel is acted on ahead of the concurrency limit and of requests still queued."""
    with start(limits={"max_in_flight": 1}, revision=LATEST_LEGACY) as client:
        client.started("sleep", {"ms": 60_000}, id=1)
        client.call("sleep", {"ms": 60_000}, id=2)
        client.call("echo", {"text": "third"}, id=3)
        client.silent_about(1)
        client.silent_about(2)
        client.cancel(2)
        client.cancel(1)
        assert client.text(3) == "third"
        assert client.journal.events(2) == []
        assert client.finish() == 0


def test_cancel_is_handled_while_client_does_not_read(start: Start) -> None:
    """Ruling 4: the client does not read, the outbox is full, and the cancel is acted on all the same."""
    with start(revision=LATEST_LEGACY) as client:
        client.started("flood", {"kind": "log", "n": 1_000_000}, id=1)
        client.silent_about(1)
        client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}, reading=False)
        client.journal.wait_for("finally", call=1)
        assert client.journal.events(1) == ["start", "cancelled", "finally"]
        client.ping()
        assert client.finish() == 0


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
