"""Members that are child processes: how they end, and what callers and watchers are told."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.hosting.members import until
from tests.hosting.processes import SERVES, SOON, children, member, pids_of, running
from tests.interaction.client.raw import RawServer, alive
from tests.interaction.harness import is_stopped
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Command, ConnectionLost, KeepAlive
from trio_mcp.hosting import Group, MemberDescription, MemberState, MemberStatus, MemberUnavailable, open_group

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")


def events_of(raw: RawServer) -> list[str]:
    return [entry["event"] for entry in raw.entries if entry["event"] != "read"]


# STD-12: the ladder

STUBBORN = """
signal.signal(signal.SIGTERM, lambda number, frame: {on_term})
note("pid", pid=os.getpid())
handshake()
ended()
while True:
    time.sleep(1000)
"""


async def jump_over_the_graces(raws: list[RawServer], clock: MockClock) -> None:
    """Each of the two passes when all of them have noted what comes before it."""
    for sign in ("eof", "signal"):
        for raw in raws:
            await raw.has(sign)
        await wait_all_tasks_blocked()  # in the grace
        clock.jump(LONG)


async def test_std_12_server_removed_from_a_group_gets_end_of_input_and_no_signal(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: note("signal", number=number))
        note("pid", pid=os.getpid())
        handshake()
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member(raw, close_grace=60)}) as group:
            await group.settled()
            await group.remove("a")
            assert not alive(pids_of(raw)[0])
    assert events_of(raw) == ["pid", "eof"]


@pytest.mark.parametrize("on_term", ['(note("signal"), os._exit(0))', 'note("signal")'], ids=["SIGTERM", "SIGKILL"])
async def test_std_12_group_terminates_a_server_that_ignores_end_of_input_by_signals(
    tmp_path: Path, on_term: str, jump_clock: MockClock
) -> None:
    raw = RawServer(tmp_path, STUBBORN.format(on_term=on_term))
    with trio.fail_after(2 * LONG + PATIENCE):
        async with trio.open_nursery() as nursery, open_group({"a": member(raw, close_grace=LONG)}) as group:
            await group.settled()
            nursery.start_soon(jump_over_the_graces, [raw], jump_clock)
            await group.remove("a")
            assert not alive(pids_of(raw)[0])
    assert events_of(raw) == ["pid", "eof", "signal"]


async def test_group_concurrently_terminates_servers_that_ignore_end_of_input(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raws = [RawServer(tmp_path, STUBBORN.format(on_term='note("signal")'), f"journal{n}") for n in range(5)]
    members = {str(n): member(raw, close_grace=LONG) for n, raw in enumerate(raws)}
    with trio.fail_after(2 * LONG + PATIENCE):
        async with trio.open_nursery() as nursery, open_group(members) as group:
            await group.settled()
            nursery.start_soon(jump_over_the_graces, raws, jump_clock)
    first_signal = min(raw.of("signal")[0]["t"] for raw in raws)
    assert all(raw.of("eof")[0]["t"] < first_signal for raw in raws)
    assert not any(alive(pid) for raw in raws for pid in pids_of(raw))


# STD-13: the whole tree

TREE = """
import subprocess
sleeper = subprocess.Popen(["sleep", "60"])
note("pid", pid=os.getpid()); note("pid", pid=sleeper.pid)
"""


@pytest.mark.parametrize("left", ["in mid call", "during connect", "by an exception"])
async def test_std_13_closed_group_leaves_no_child_processes(tmp_path: Path, left: str) -> None:
    raw = RawServer(tmp_path, TREE + ("read(); time.sleep(60)" if left == "during connect" else SERVES))
    shell = Command(["sh", "-c", '"$@"; exit $?', "sh", *raw.command], close_grace=0.2)
    options: Any = {} if left == "during connect" else {"era": "legacy"}
    before = children()

    async def use(group: Group, scope: trio.CancelScope) -> None:
        if left == "by an exception":
            await raw.got("tools/list")
            raise LookupError("body")
        async with trio.open_nursery() as nursery:
            if left == "in mid call":
                nursery.start_soon(group.call_tool, "a__wait")
            await raw.got("tools/call" if left == "in mid call" else "server/discover")
            scope.cancel()

    with trio.fail_after(PATIENCE), trio.CancelScope() as scope, suppress(LookupError):
        async with open_group({"a": MemberDescription(shell, options=options)}) as group:
            await use(group, scope)
    assert len(set(pids_of(raw))) == 2
    assert not any(running(pid) for pid in pids_of(raw))
    assert not children() - before


# STD-16: death


async def failures_of(calls: list[Callable[[], Any]]) -> list[Exception]:
    failures: list[Exception] = []

    async def run(call: Callable[[], Any]) -> None:
        try:
            await call()
        except Exception as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)
    return failures


async def test_std_16_error_for_a_missing_command_names_the_command() -> None:
    with trio.fail_after(PATIENCE):
        async with open_group({"a": MemberDescription(["/nowhere/no-such-command"])}) as group:
            status = await until(group.watch(), "a", MemberState.FAILED)
            assert isinstance(status.error, ConnectionLost)
            with pytest.raises(MemberUnavailable, match=r"'a' has failed: no-such-command could not be started"):
                await group.client("a")


async def test_std_16_error_for_a_server_that_exits_before_its_first_response_has_status_and_stderr(
    tmp_path: Path,
) -> None:
    raw = RawServer(tmp_path, 'read(); os.write(2, b"first line\\nno licence found\\n"); os._exit(3)')
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member(raw)}) as group:
            failures = await failures_of([lambda: group.client("a")] * 3)
    assert [type(failure) for failure in failures] == [MemberUnavailable] * 3
    for failure in failures:
        assert isinstance(failure, MemberUnavailable)
        assert isinstance(failure.error, ConnectionLost)
        assert failure.error.exit_status == 3
        assert failure.stderr == ("first line", "no licence found")


@pytest.mark.parametrize(
    ("death", "status"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(7)", 7), ("os.close(1); time.sleep(60)", None)],
    ids=["killed", "exits", "closes its output"],
)
async def test_std_16_server_crash_raises_connection_lost_in_all_pending_calls(
    tmp_path: Path, death: str, status: int | None
) -> None:
    raw = RawServer(tmp_path, f'handshake(); [until("tools/call") for _ in range(3)]; os.write(2, b"oops\\n"); {death}')
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member(raw, close_grace=0.2)}) as group:
            client = await group.client("a")
            failures = await failures_of([lambda: client.call_tool("any")] * 3)
            told = await until(group.watch(), "a", MemberState.FAILED)
            await trio.lowlevel.checkpoint()  # and nobody cancelled this task
    assert len(failures) == 3
    for error in (*failures, told.error):
        assert type(error) is ConnectionLost
        assert (error.exit_status, error.stderr) == (status, ("oops",))


async def test_connect_timeout_error_of_a_server_in_a_group_contains_the_last_stderr_lines(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raw = RawServer(tmp_path, 'os.write(2, b"waiting for the database\\n"); read(); time.sleep(1000)')
    with trio.fail_after(LONG + PATIENCE):
        async with open_group({"a": member(raw, close_grace=0.1, connect_timeout=LONG)}) as group:
            await raw.jump_when_got(jump_clock, "initialize")
            status = await until(group.watch(), "a", MemberState.FAILED)
    assert str(status.error).startswith(f"the server was not ready within {LONG:g} s")
    assert status.stderr == ("waiting for the database",)


# SHD-03, SHD-04


async def test_shd_03_call_fails_if_its_server_is_killed_and_the_group_restarts_the_server_once(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, SERVES)
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member(raw, restart=SOON)}) as group, trio.open_nursery() as nursery:
            told: list[MemberStatus] = []
            pids = set[str]()

            async def watch() -> None:
                async for status in group.watch():
                    told.append(status)

            async def echo() -> None:
                pids.add((await group.call_tool("a__echo")).text)

            nursery.start_soon(watch)
            await group.settled()
            with pytest.raises(ConnectionLost) as caught:
                await group.call_tool("a__die")
            async with trio.open_nursery() as callers:
                for _ in range(5):
                    callers.start_soon(echo)
            nursery.cancel_scope.cancel()
    assert (caught.value.exit_status, caught.value.stderr) == (-signal.SIGKILL, ("what a day",))
    assert [(str(status.state), status.stderr) for status in told] == [
        ("starting", ()),
        ("ready", ()),
        ("restarting", ("what a day",)),
        ("ready", ()),
    ]
    assert [str(pid) for pid in pids_of(raw)[1:]] == list(pids)
    assert sum(message.get("params", {}).get("name") == "die" for message in raw.wire) == 1


async def test_shd_04_group_detects_a_stopped_server_by_pings_and_restarts_it(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raw = RawServer(tmp_path, SERVES)
    keep_alive = KeepAlive(interval=LONG, timeout=LONG)

    async def jump_on() -> None:
        while True:
            jump_clock.jump(LONG)
            await wait_all_tasks_blocked()

    with trio.fail_after(10 * LONG):
        async with open_group({"a": member(raw, restart=SOON, close_grace=0.1, keep_alive=keep_alive)}) as group:
            await group.settled()
            statuses = group.watch()
            (first,) = pids_of(raw)
            os.kill(first, signal.SIGSTOP)
            while not is_stopped(first):  # noqa: ASYNC110 - the event is in another process
                await trio.sleep(0.005)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(jump_on)
                told = await until(statuses, "a", MemberState.RESTARTING)
                nursery.cancel_scope.cancel()
            assert "did not answer 2 pings" in str(told.error)
            assert (await group.call_tool("a__echo")).text != str(first)
            assert not alive(first)


# API-01, TMO-06, and ours next to others


async def test_api_01_one_server_of_a_group_can_be_closed_while_another_serves_calls(tmp_path: Path) -> None:
    raws = {name: RawServer(tmp_path, SERVES, name) for name in "abc"}
    before = children()
    with trio.fail_after(PATIENCE):
        async with open_group({name: member(raw) for name, raw in raws.items()}) as group:
            await group.settled()

            async def wait_on_a() -> None:
                with pytest.raises(ConnectionLost):
                    await group.call_tool("a__wait")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_on_a)
                await raws["a"].got("tools/call")
                nursery.start_soon(group.remove, "a")
            assert children() - before == {pids_of(raws[name])[0] for name in "bc"}
            assert (await group.call_tool("b__echo")).text == str(pids_of(raws["b"])[0])
    assert not children() - before


DROPS = """
import json, sys, trio
from trio_mcp import open_stdio

async def main(command):
    opening = open_stdio(command, era="legacy")
    await opening.__aenter__()  # and nobody closes it

trio.run(main, json.loads(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs to wait for a process that is none of its children")
async def test_api_01_client_that_is_never_closed_warns_and_its_child_process_ends(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, SERVES)
    program = [sys.executable, "-W", "always", "-c", DROPS, json.dumps(list(map(str, raw.command)))]
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(program, capture_stderr=True, check=False)
        assert b"ResourceWarning" in done.stderr, "of trio, and of subprocess"
        (pid,) = pids_of(raw)
        with suppress(ProcessLookupError):  # it has ended already
            ended = os.pidfd_open(pid)
            await trio.lowlevel.wait_readable(ended)
            os.close(ended)


async def test_tmo_06_server_stays_in_the_group_after_the_deadline_around_the_add_call_expires(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, SERVES)
    with trio.fail_after(PATIENCE):
        async with open_group() as group:
            with trio.move_on_after(0.3):
                group.add("a", member(raw))
                await trio.sleep_forever()
            await group.settled()
            assert (await group.call_tool("a__echo")).text == str(pids_of(raw)[0])


async def test_repeated_removal_and_addition_of_a_server_leaves_one_child_process(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, SERVES)
    before = children()
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member(raw)}) as group:
            for _ in range(3):
                await group.settled()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(group.remove, "a")
                    await wait_all_tasks_blocked()
                    group.add("a", member(raw))
            assert (await group.call_tool("a__echo")).text == str(pids_of(raw)[-1])
            assert len(children() - before) == 1
    assert not children() - before


async def test_group_can_contain_a_trio_mcp_server_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(
        "import trio\nfrom trio_mcp import Server, serve_stdio\nserver = Server('ours')\n"
        "@server.tool\nasync def add(a: int, b: int) -> int:\n    return a + b\n"
        "trio.run(serve_stdio, server)\n"
    )
    with trio.fail_after(PATIENCE):
        async with open_group({"ours": MemberDescription([sys.executable, tmp_path / "ours.py"])}) as group:
            assert (await group.call_tool("ours__add", {"a": 1, "b": 2})).text == "3"
