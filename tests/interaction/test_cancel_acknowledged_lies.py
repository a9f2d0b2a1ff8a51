"""A client validates the server's answer about a cancelled call: no time is longer than the call."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, discovery, scripted

from trio_mcp import CancelAcknowledged, confirm_cancels
from trio_mcp.client.opening import open_client
from trio_mcp.protocol.cancel_acknowledged import NAME
from trio_mcp.types import CallEnding

INFO = {"name": "liar", "version": "1"}
DECLARED = {"extensions": {NAME: {"maxWaitMs": 30000}}}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


async def ending_of(answer: str, era: Any, *, after: float = 1.0) -> CallEnding:
    """How a call has ended that is left after a second, where the server ``answer``s so a while later."""

    async def script(peer: RawPeer) -> None:
        opening = await peer.read()
        legacy = {"protocolVersion": "2025-11-25", "capabilities": DECLARED, "serverInfo": INFO}
        await peer.result(opening, legacy if era == "legacy" else discovery(capabilities=DECLARED))
        asked = await peer.until("trio-mcp/cancel")
        await trio.sleep(after)
        await peer.write(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{answer}}}')

    async with (
        scripted(script) as (channel, _),
        open_client(channel, era=era, extensions=[CancelAcknowledged()]) as client,
    ):
        with confirm_cancels() as endings, trio.move_on_after(1):
            await client.call_tool("slow")
    (ending,) = endings
    return ending


@ERAS
@pytest.mark.parametrize(
    "said", ["-1", "-1000", "1" + "0" * 300, "1" + "0" * 4000, "1" * 40, "86400001", "2100", "null"]
)
async def test_client_ignores_cleanup_time_in_a_cancel_acknowledgement_if_it_exceeds_the_call_duration(
    autojump_clock: object, said: str, era: str
) -> None:
    ending = await ending_of(f'{{"state":"stopped","cleanupMs":{said}}}', era)
    assert (ending.state, ending.cleanup) == ("stopped", None)


@ERAS
@pytest.mark.parametrize(("said", "seconds"), [("0", 0.0), ("35", 0.035), ("999", 0.999), ("2000", 2.0)])
async def test_client_keeps_cleanup_time_in_a_cancel_acknowledgement_if_it_is_within_the_call_duration(
    autojump_clock: object, said: str, seconds: float, era: str
) -> None:
    ending = await ending_of(f'{{"state":"stopped","cleanupMs":{said}}}', era)
    assert (ending.state, ending.cleanup) == ("stopped", seconds)
    assert ending.seconds == pytest.approx(1.0)


@ERAS
@pytest.mark.parametrize(
    "said", ["NaN", "Infinity", "1e400", "-0.001", "1e297", "0.5", "true", "false", '"35"', "[]", "{}"]
)
async def test_client_reports_state_unknown_if_cleanup_time_in_a_cancel_acknowledgement_is_not_an_integer(
    autojump_clock: object, said: str, era: str
) -> None:
    ending = await ending_of(f'{{"state":"stopped","cleanupMs":{said}}}', era)
    assert (ending.state, ending.cleanup) == ("unknown", None)


@ERAS
@pytest.mark.parametrize(
    ("members", "state"),
    [
        ({"neverRan": "yes"}, "unknown"),
        ({"neverRan": 1}, "unknown"),
        ({"outcome": ["result"]}, "unknown"),
        ({"behind": {}}, "unknown"),
        ({"outcome": "maybe"}, "stopped"),
        ({"behind": "lost"}, "stopped"),
        ({"cleanupMs": -1, "neverRan": None}, "stopped"),
    ],
)
async def test_client_ignores_an_invalid_field_of_a_cancel_acknowledgement(
    autojump_clock: object, members: dict[str, Any], state: str, era: str
) -> None:
    ending = await ending_of(json.dumps({"state": "stopped", **members}), era)
    assert (ending.state, ending.cleanup, ending.never_ran) == (state, None, False)
    assert (ending.outcome, ending.behind) == (None, None)


@ERAS
@pytest.mark.parametrize(
    "answer",
    [
        "null",
        "[]",
        "5",
        '"stopped"',
        "{}",
        '{"state":null}',
        '{"state":["stopped"]}',
        '{"state":"gone"}',
        '{"state":"silent"}',
    ],
)
async def test_client_reports_state_unknown_if_a_cancel_acknowledgement_has_no_state(
    autojump_clock: object, answer: str, era: str
) -> None:
    ending = await ending_of(answer, era)
    assert ending.state == "unknown"
