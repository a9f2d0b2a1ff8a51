"""Members that are started anew: when, how often, and what becomes of calls."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.hosting.members import QUICK, describe, hangs, refuses, serves, target_of, until
from tests.interaction.client.raw import RawPeer
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Address, BadTarget, ConnectionLost, PeerError, Server
from trio_mcp.hosting import MemberDescription, MemberState, MemberStatus, MemberUnavailable, RestartPolicy, open_group

# The policy


def test_restart_delay_doubles_up_to_max_delay() -> None:
    policy = RestartPolicy(first_delay=0.5, max_delay=6, jitter=0)
    assert [policy._delay(attempt) for attempt in range(1, 7)] == [0.5, 1, 2, 4, 6, 6]
    assert policy._delay(10**6) == 6


def test_restart_delay_is_at_most_thirty_seconds_by_default() -> None:
    assert RestartPolicy(jitter=0)._delay(1000) == 30


@pytest.mark.parametrize(("random", "delay"), [(0.0, 8.0), (0.5, 6.0), (1.0, 4.0)])
def test_restart_jitter_shortens_the_restart_delay_by_a_random_fraction(random: float, delay: float) -> None:
    policy = RestartPolicy(first_delay=8, jitter=0.5, random=lambda: random)
    assert policy._delay(1) == delay


@pytest.mark.parametrize(
    "wrong", [{"attempts": -1}, {"first_delay": math.nan}, {"max_delay": -1}, {"jitter": 1.1}, {"stable_after": -1}]
)
def test_invalid_restart_policy_raises_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RestartPolicy(**wrong)


# Restarts

SERVES = "trio.run(trio_mcp.serve_stdio, trio_mcp.Server('late'))"


async def news(statuses: Any, count: int) -> list[tuple[str, int, float]]:
    """The next ``count`` states, how many restarts, and when each was told."""
    told: list[tuple[str, int, float]] = []
    async for status in statuses:
        told.append((str(status.state), status.restarts, round(trio.current_time(), 3)))
        if len(told) == count:
            break
    return told


@pytest.mark.parametrize("url", ["tcp://no..host:8765", "ws://a host/mcp", f"tcp://{'x' * 64}.example:1"])
async def test_group_does_not_restart_a_server_with_an_invalid_address(autojump_clock: MockClock, url: str) -> None:
    description = MemberDescription(Address(url), restart=QUICK)
    async with open_group({"a": description}) as group:
        await group.settled()
        assert (group.statuses["a"].state, group.statuses["a"].restarts) == (MemberState.FAILED, 0)
        with pytest.raises(MemberUnavailable, match="has failed"):
            await group.client("a")
        assert isinstance(group.statuses["a"].error, BadTarget)


async def test_group_tries_to_restart_a_server_whose_command_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "server"
    policy = RestartPolicy(first_delay=0, max_delay=0, attempts=math.inf)
    async with open_group({"a": MemberDescription([str(program)], restart=policy)}) as group:
        with trio.fail_after(PATIENCE):
            status = await until(group.watch(), "a", MemberState.RESTARTING)
            assert isinstance(status.error, ConnectionLost)
            written = tmp_path / "written"
            written.write_text(f"#!{sys.executable}\nimport trio, trio_mcp\n{SERVES}")
            written.chmod(0o700)
            written.rename(program)
            await until(group.watch(), "a", MemberState.READY)


async def test_server_that_cannot_start_is_retried_with_backoff_and_fails_after_the_last_attempt(
    autojump_clock: MockClock,
) -> None:
    policy = attrs.evolve(QUICK, attempts=4, max_delay=4)
    description = describe(refuses, restart=policy)
    async with open_group({"a": description}) as group:
        assert await news(group.watch(), 6) == [
            ("starting", 0, 0),
            ("restarting", 1, 0),
            ("restarting", 2, 1),
            ("restarting", 3, 3),
            ("restarting", 4, 7),
            ("failed", 4, 11),
        ]
        with pytest.raises(MemberUnavailable, match="no licence") as caught:
            await group.client("a")
        assert type(caught.value.error) is PeerError
        await trio.sleep(1000)
    assert target_of(description).opened == 5


async def test_group_does_not_restart_a_server_without_a_restart_policy(autojump_clock: MockClock) -> None:
    description = describe(refuses, serves())
    async with open_group({"a": description}) as group:
        await until(group.watch(), "a", MemberState.FAILED)
        await trio.sleep(1000)
        assert target_of(description).opened == 1


async def test_restart_count_is_reset_after_the_server_ran_for_the_configured_time(autojump_clock: MockClock) -> None:
    policy = attrs.evolve(QUICK, attempts=2, stable_after=60)
    description = describe(serves(first_death=61), restart=policy)
    async with open_group({"a": description}) as group:
        restarts = [restarts for state, restarts, _ in await news(group.watch(), 12) if state == "restarting"]
        assert restarts == [1] * 5


async def test_restart_count_is_kept_if_the_server_ran_for_less_than_the_configured_time(
    autojump_clock: MockClock,
) -> None:
    policy = attrs.evolve(QUICK, attempts=2, stable_after=60)
    description = describe(serves(first_death=59), restart=policy)
    async with open_group({"a": description}) as group:
        states = [state for state, _, _ in await news(group.watch(), 7)]
        assert states == ["starting", "ready", "restarting", "ready", "restarting", "ready", "failed"]


async def test_shd_03_call_interrupted_by_a_server_crash_raises_and_is_never_retried(autojump_clock: MockClock) -> None:
    description = describe(serves("wait", "die", "echo"), restart=QUICK)
    target = target_of(description)
    async with open_group({"a": description}) as group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        assert (await group.call_tool("a__echo")).text == "echo"
        await trio.sleep(1000)
    assert [[m["params"]["name"] for m in peer.wire if m.get("method") == "tools/call"] for peer in target.peers] == [
        ["die"],
        ["echo"],
    ]


async def test_shd_03_concurrent_calls_wait_for_the_same_server_restart(autojump_clock: MockClock) -> None:
    description = describe(serves("die", "echo"), restart=QUICK)
    async with open_group({"a": description}) as group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(group.call_tool, "a__echo")
        assert trio.current_time() == pytest.approx(1)
    assert target_of(description).opened == 2
    assert target_of(description).calls() == 11


async def test_waiting_for_a_restart_can_be_cancelled_by_a_timeout(autojump_clock: MockClock) -> None:
    description = describe(serves("die", "echo"), hangs, restart=QUICK)
    async with open_group({"a": description}) as group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        with pytest.raises(trio.TooSlowError), trio.fail_after(5):
            await group.call_tool("a__echo")
        assert group.statuses["a"].state == MemberState.RESTARTING


async def test_waiting_for_a_restart_raises_when_the_last_attempt_fails(autojump_clock: MockClock) -> None:
    description = describe(serves("die", "echo"), refuses, restart=attrs.evolve(QUICK, attempts=2))
    async with open_group({"a": description}) as group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        with pytest.raises(MemberUnavailable, match="no licence"):
            await group.call_tool("a__echo")


async def test_group_restarts_a_server_that_is_not_ready_within_connect_timeout(
    autojump_clock: MockClock,
) -> None:
    description = describe(hangs, serves("echo"), restart=QUICK, connect_timeout=5)
    async with open_group({"a": description}) as group:
        status = await until(group.watch(), "a", MemberState.RESTARTING)
        assert str(status.error) == "the server was not ready within 5 s"
        assert status.retry_in == 1
        assert (await group.call_tool("a__echo")).text == "echo"


async def test_group_does_not_restart_a_server_whose_lifespan_raises(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[Server] = []

    def lifespan(server: Server) -> Any:
        opened.append(server)
        raise LookupError("no database")

    description = MemberDescription(Server("a", lifespan=lifespan), restart=QUICK)
    async with open_group({"a": description}) as group:
        await until(group.watch(), "a", MemberState.FAILED)
        await trio.sleep(1000)
    assert len(opened) == 1
    caplog.clear()


async def test_server_can_be_removed_from_its_group_while_it_waits_for_a_restart(autojump_clock: MockClock) -> None:
    description = describe(refuses, serves("echo"), restart=RestartPolicy(first_delay=1000, max_delay=1000))
    async with open_group({"a": description}) as group:
        await until(group.watch(), "a", MemberState.RESTARTING)
        await group.remove("a")
        assert trio.current_time() == 0
        group.add("a", description)
        assert (await group.call_tool("a__echo")).text == "echo"
    assert target_of(description).opened == 2


async def test_restart_waits_until_the_old_connection_is_closed(autojump_clock: MockClock) -> None:
    description = describe(serves("die", "echo"), restart=QUICK)
    target = target_of(description)
    object.__setattr__(target, "may_close", trio.Event())
    async with open_group({"a": description}) as group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        assert (await until(group.watch(), "a", MemberState.RESTARTING)).restarts == 1
        await trio.sleep(100)
        assert target.opened == 1
        target.may_close.set()
        assert (await group.call_tool("a__echo")).text == "echo"


# What is told


async def test_group_watch_yields_each_server_status_in_order(autojump_clock: MockClock) -> None:
    description = describe(serves("die"), restart=attrs.evolve(QUICK, attempts=1))
    async with open_group({"a": description}) as group:
        statuses = group.watch()
        told: list[MemberStatus] = []

        async def read() -> None:
            async for status in statuses:
                told.append(status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await group.call_tool("a__die")
            await wait_all_tasks_blocked()
            await group.remove("a")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(str(status.state), type(status.error), status.retry_in) for status in told] == [
        ("starting", type(None), None),
        ("ready", type(None), None),
        ("restarting", ConnectionLost, 1),
        ("ready", type(None), None),
        ("failed", ConnectionLost, None),
        ("closed", ConnectionLost, None),
    ]


async def test_group_watch_ends_after_all_statuses_when_the_group_closes(autojump_clock: MockClock) -> None:
    async def end(peer: RawPeer) -> None:
        await serves()(peer)

    told: list[tuple[str, str]] = []
    async with trio.open_nursery() as nursery, open_group({"a": describe(end), "b": describe(hangs)}) as group:
        statuses = group.watch()

        async def read() -> None:
            told.extend([(status.name, str(status.state)) async for status in statuses])

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
    assert told == [("a", "starting"), ("b", "starting"), ("a", "ready"), ("a", "closed"), ("b", "closed")]
