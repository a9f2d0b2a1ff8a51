"""BPL: many requests on one connection leave no memory, descriptors or CPU use in a server process."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
import trio
import trio.testing
from tests.interaction.fixture_server import server
from tests.interaction.harness import cpu_seconds, descriptors_of, resident_bytes, threads_of, wait_until
from tests.interaction.raw_client import ERAS, LATEST_LEGACY, RawClient, Start, across

from trio_mcp import PeerError, open_memory


def exchange(client: RawClient, rounds: int) -> int:
    """Calls of every kind, a hundred or so in flight at once; how many."""
    count = 0
    for _ in range(rounds):
        messages: list[dict[str, Any]] = []
        answered: list[Any] = []
        cancelled: list[Any] = []
        for _ in range(20):
            for tool, arguments in (
                ("echo", {"text": "x" * 100}),
                ("fail", {"kind": "tool_error"}),
                ("no such tool", {}),
                ("progress", {"values": [1, 2]}),
                ("sleep", {"ms": 0}),
            ):
                message = client.call_message(tool, arguments, token=client.fresh_id())
                messages.append(message)
                answered.append(message["id"])
            message = client.call_message("sleep", {"ms": 60_000})
            cancelled.append(message["id"])
            cancel = {"method": "notifications/cancelled", "params": {"requestId": message["id"], "reason": "r"}}
            messages += [message, {"jsonrpc": "2.0", **cancel}]
        if not client.is_modern:
            ask = client.call_message("ask", {"kind": "roots"})
            messages.append(ask)
            answered.append(ask["id"])
        client.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        if not client.is_modern:
            client.answer(client.asked("roots/list"), {"roots": []})
        for request_id in answered:
            client.reply(request_id)
        count += len(answered) + len(cancelled)
        assert not [request_id for request_id in cancelled if client.replies(request_id)]
        client.forget()  # ours would grow too
    return count


@pytest.mark.parametrize(("transport", "revision"), across(ERAS))
def test_bpl_04_server_leaks_no_memory_threads_or_descriptors_in_ten_thousand_calls(
    start: Start, revision: str
) -> None:
    with start(revision=revision, capabilities={"roots": {}}) as client:
        client.text(client.call("thread_sleep", {"ms": 0}))  # the one idle thread that trio keeps for a while
        exchange(client, 10)
        tasks, descriptors = client.text(client.call("tasks")), descriptors_of(client.pid)
        threads, resident = threads_of(client.pid), resident_bytes(client.pid)
        assert exchange(client, 84) >= 10_000
        assert resident_bytes(client.pid) - resident < 5 * 2**20
        assert descriptors_of(client.pid) == descriptors
        assert threads_of(client.pid) <= threads
        assert wait_until(lambda: client.text(client.call("tasks")) == tasks)
        assert client.finish() == 0
        assert client.stderr() == ""


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_bpl_04_calls_leave_no_reference_cycles(era: Literal["legacy", "modern"]) -> None:
    """What a call held is free when it ends, its arguments above all, and not some thousand calls later."""

    async def cancelled() -> None:
        with trio.move_on_after(0.01):
            await client.call_tool("sleep", {"ms": 60_000})
        await client.call_tool("echo", {"text": "the cancel has arrived"})

    async def refused() -> None:
        with pytest.raises(PeerError):
            await client.call_tool("no such tool")

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "echo": lambda: client.call_tool("echo", {"text": "x"}),
        "progress": lambda: client.call_tool("progress", {"values": [1, 2]}, on_progress=lambda _: None),
        "failure": lambda: client.call_tool("fail", {"kind": "tool_error"}),
        "question": lambda: client.call_tool("ask", {"kind": "roots"}),
        "cancelled": cancelled,
        "refused": refused,
    }
    async with open_memory(server, era=era, roots=[]) as client:
        for name, call in calls.items():
            await call()
            await trio.testing.wait_all_tasks_blocked()
            gc.disable()
            gc.freeze()  # what all other tests have left in this process takes long to look through
            try:
                for _ in range(20):
                    await call()
                await trio.testing.wait_all_tasks_blocked()
                assert gc.collect() < 20, name
            finally:
                gc.enable()


@pytest.mark.parametrize("transport", ["stdio"])  # what it holds is far from any transport
def test_bpl_04_cancelled_calls_release_their_memory_when_they_end(start: Start) -> None:
    def cancel(count: int) -> None:
        for _ in range(count // 100):
            messages: list[dict[str, Any]] = []
            for _ in range(100):
                message = client.call_message("sleep", {"ms": 60_000})
                cancel = {"method": "notifications/cancelled", "params": {"requestId": message["id"]}}
                messages += [message, {"jsonrpc": "2.0", **cancel}]
            client.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
            client.ping()

    with start(limits={"cleanup_grace": 3600}, revision=LATEST_LEGACY) as client:
        cancel(1000)
        resident = resident_bytes(client.pid)
        cancel(10_000)
        assert resident_bytes(client.pid) - resident < 5 * 2**20


def test_bpl_04_server_leaks_no_memory_after_malformed_messages(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:

        def nonsense(rounds: int) -> None:
            for _ in range(rounds):
                lines = [
                    b"{bad",
                    b"[]",
                    b"42",
                    b'{"jsonrpc":"2.0","id":4711,"result":{}}',
                    b'{"jsonrpc":"2.0","method":"x"}',
                ]
                client.write(b"\n".join(lines * 100) + b"\n")
                client.ping()
                client.forget()

        nonsense(3)
        resident = resident_bytes(client.pid)
        nonsense(40)
        assert resident_bytes(client.pid) - resident < 5 * 2**20


def test_bpl_06_idle_server_uses_no_cpu_after_a_thousand_cancels(start: Start) -> None:
    """At most 50 ms of processor time in 5 s, looked at for 2 s."""
    with start(revision=LATEST_LEGACY) as client:
        for _ in range(10):
            ids = [client.call("sleep", {"ms": 60_000}) for _ in range(100)]
            client.ping()
            for request_id in ids:
                client.silent_about(request_id)
                client.cancel(request_id)
            client.ping()
        client.journal.wait_for("finally", tool="sleep", count=len(client.journal.entries("start", tool="sleep")))
        client.ping()
        before = cpu_seconds(client.pid)
        time.sleep(2)  # the claim is about time that passes
        assert cpu_seconds(client.pid) - before <= 0.02


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_bpl_06_server_leaks_no_memory_and_uses_no_cpu_after_clients_vanish(start: Start) -> None:
    """Each has a call and a question under way, and closes its socket without a word."""

    def vanish(count: int) -> None:
        for number in range(count):
            with client.beside(LATEST_LEGACY, {"roots": {}}) as other:
                other.call("sleep", {"ms": 60_000}, id=f"{count}-{number}")
                other.call("ask", {"kind": "roots"})
                other.asked("roots/list")
        client.journal.wait_for("finally", tool="ask", count=count)
        assert wait_until(lambda: client.text(client.call("tasks")) == tasks)

    with start(revision=LATEST_LEGACY) as client:
        tasks, descriptors = client.text(client.call("tasks")), descriptors_of(client.pid)
        vanish(20)
        resident = resident_bytes(client.pid)
        vanish(100)
        assert resident_bytes(client.pid) - resident < 5 * 2**20
        assert descriptors_of(client.pid) == descriptors
        before = cpu_seconds(client.pid)
        time.sleep(1)  # the claim is about time that passes
        assert cpu_seconds(client.pid) - before <= 0.02
        assert client.finish() == 0
        assert client.stderr() == ""


@pytest.mark.parametrize("transport", ["stdio"])  # what it holds is far from any transport
def test_bpl_06_server_uses_no_cpu_while_all_its_running_handlers_wait(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities={"roots": {}}) as client:
        for _ in range(100):
            client.started("sleep", {"ms": 60_000})
        client.call("ask", {"kind": "roots"})
        client.asked("roots/list")
        client.started("thread_sleep", {"ms": 60_000})
        before = cpu_seconds(client.pid)
        time.sleep(2)
        assert cpu_seconds(client.pid) - before <= 0.02


def test_requests_beyond_in_flight_and_queue_limits_are_refused_without_running(start: Start) -> None:
    """Ruling 11: in flight, queued, and beyond that a clear error; cancels make room at once."""
    with start(limits={"max_in_flight": 2, "max_queued": 3}, revision=LATEST_LEGACY) as client:
        for number in range(8):
            client.call("sleep", {"ms": 60_000}, id=number)
        refused = [client.take(lambda message: "error" in message, "a refusal") for _ in range(3)]
        assert [message["error"]["code"] for message in refused] == [-31000] * 3
        client.ping()
        started = {entry["call"] for entry in client.journal.wait_for("start", tool="sleep", count=2)}
        waiting = {*range(8)} - started - {message["id"] for message in refused}
        for number in (*waiting, *started):  # the waiting ones first, or they would run
            client.silent_about(number)
            client.cancel(number)
        assert client.echo("room again") == "room again"
        assert {entry["call"] for entry in client.journal.entries(tool="sleep")} == started
        assert client.finish() == 0


@pytest.mark.parametrize("transport", ["stdio"])  # what it holds is far from any transport
def test_max_inbound_bytes_limits_the_total_size_of_requests_in_flight(start: Start) -> None:
    with start(limits={"max_inbound_bytes": 10_000}, revision=LATEST_LEGACY) as client:
        assert client.echo("x" * 20_000) == "x" * 20_000, "one alone is always served"
        client.started("sleep", {"ms": 60_000}, id=1)
        assert client.error(client.call("echo", {"text": "x" * 20_000}))["code"] == -31000
        assert client.echo("x" * 1000) == "x" * 1000
        client.cancel(1)
        client.journal.wait_for("finally", call=1)
        assert wait_until(lambda: "result" in client.reply(client.call("echo", {"text": "x" * 20_000})))


def test_server_stops_reading_from_a_client_that_never_reads_and_memory_stays_bounded(start: Start) -> None:
    """Reading pauses when the answers pile up, so the client's own writes stop: it waits for itself."""
    limits = {"high_water": 4096, "max_message_bytes": 1 << 20}
    with start(limits=limits, revision=LATEST_LEGACY) as client:
        client.ping()
        before = resident_bytes(client.pid)
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n"

        def send_on_and_on() -> None:
            for _ in range(100 * 2**20 // len(line * 2000)):
                client.write(line * 2000, reading=False, bound=1)

        with pytest.raises(AssertionError, match="did not read"):
            send_on_and_on()
        assert resident_bytes(client.pid, peak=True) - before < 20 * 2**20
