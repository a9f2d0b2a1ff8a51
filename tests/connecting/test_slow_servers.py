"""Servers that start slowly, and read ``server/discover`` and ``initialize`` together.

A good answer to ``server/discover`` wins, in whatever order the tasks of the client run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.connecting.raw_sockets import WAYS, Lines, lines, served
from tests.examples import examples
from tests.interaction.client.raw import INFO, RawServer, discovery
from tests.orders import run_in_order_of
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import ConnectionLost, open_stdio
from trio_mcp.client.opening import open_client
from trio_mcp.transports.lines import memory_transport_pair

MODERN, LEGACY = "2026-07-28", "2025-11-25"
SEEDS = examples(1000)
GREETED = {"protocolVersion": LEGACY, "capabilities": {}, "serverInfo": INFO}
LOG = {"method": "notifications/message", "params": {"level": "info", "data": "ready"}}
TOGETHER = 0.0
"""A limit of the probe that is over at once, so that both questions are sent together."""

Answers = Callable[[Any, Any], list[dict[str, Any]]]


def both(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": discovery()}, {"id": initialize, "result": GREETED}]


def both_after_a_log(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [LOG, *both(discover, initialize)]


def refusing_initialize(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": initialize, "error": {"code": -32601, "message": "no"}}, {"id": discover, "result": discovery()}]


def greeting_senselessly(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": discovery()}, {"id": initialize, "result": {"protocolVersion": "none"}}]


def refusing_discover(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "error": {"code": -32601, "message": "no"}}, {"id": initialize, "result": GREETED}]


def discovering_senselessly(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": {"supportedVersions": 5}}, {"id": initialize, "result": GREETED}]


# In memory


async def in_memory(answers: Answers, *, is_offered: bool = False, dies: bool = False) -> str:
    ours, theirs = memory_transport_pair()

    async def serve() -> None:
        discover = json.loads(await theirs.receive())
        initialize = json.loads(await theirs.receive())
        for message in answers(discover["id"], initialize["id"]):
            await theirs.send(lines(message))
        if is_offered:
            again = json.loads(await theirs.receive())
            assert again["method"] == "server/discover"
            await theirs.send(lines({"id": again["id"], "result": discovery()}))
        if dies:
            return await theirs.aclose()
        with pytest.raises((trio.EndOfChannel, ConnectionLost)):
            while True:
                await theirs.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours) as client:
            return client.revision.name


async def over_socket(answers: Answers, way: str, folder: Path) -> str:
    async def script(end: Lines) -> None:
        ids = [(await end.read())["id"] for _ in range(2)]
        await end.write(lines(*answers(*ids)))

    async with served(way, script, folder, probe_timeout=TOGETHER) as client:
        return client.revision.name


MODERN_ANSWERS = [both, both_after_a_log, refusing_initialize, greeting_senselessly]


@pytest.mark.parametrize("answers", MODERN_ANSWERS)
def test_client_prefers_a_discover_result_to_an_initialize_result_whichever_task_runs_first(answers: Answers) -> None:
    found = {run_in_order_of(seed, in_memory, answers, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


@pytest.mark.parametrize("answers", [refusing_discover, discovering_senselessly])
def test_client_uses_the_initialize_result_if_discover_fails(answers: Answers) -> None:
    found = {run_in_order_of(seed, in_memory, answers, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {LEGACY}


def test_client_prefers_a_discover_error_that_lists_a_modern_revision_to_an_initialize_result() -> None:
    def offering(discover: Any, initialize: Any) -> list[dict[str, Any]]:
        data = {"supported": [MODERN], "requested": MODERN}
        error = {"code": -32022, "message": "ask once more", "data": data}
        return [{"id": discover, "error": error}, {"id": initialize, "result": GREETED}]

    opened = partial(in_memory, offering, is_offered=True)
    found = {run_in_order_of(seed, opened, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


def test_client_uses_a_valid_discover_result_even_if_the_server_then_exits() -> None:
    opened = partial(in_memory, both, dies=True)
    found = {run_in_order_of(seed, opened, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answers", MODERN_ANSWERS)
def test_client_prefers_a_discover_result_to_an_initialize_result_on_socket_transports(
    way: str, answers: Answers, tmp_path: Path
) -> None:
    each = range(SEEDS // len(MODERN_ANSWERS))
    found = {run_in_order_of(seed, over_socket, answers, way, tmp_path) for seed in each}
    assert found == {MODERN}


def test_client_prefers_a_discover_result_to_an_initialize_result_on_stdio(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        discover, initialize = read(), read()
        write(b"".join(
            json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\\n"
            for id, result in [
                (discover["id"], {"supportedVersions": ["2026-07-28"], "capabilities": {},
                                  "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}),
                (initialize["id"], {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO}),
            ]
        ))
        """,
    )

    async def opened() -> str:
        with trio.fail_after(PATIENCE):
            async with open_stdio(raw.command, probe_timeout=TOGETHER) as client:
                return client.revision.name

    assert {run_in_order_of(seed, opened) for seed in range(20)} == {MODERN}
