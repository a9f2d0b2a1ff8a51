"""trio-mcp/cancelAcknowledged through proxies and gateways, which answer for themselves and for what is behind them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import trio
from tests.interaction import cancel_server
from tests.interaction.test_cancel_acknowledged_wires import Era, left, options, server_that_says

from trio_mcp import CancelAcknowledged, Limits, PeerError, Server, gateway, open_memory, proxy
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.types import Extension


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


async def test_three_proxies_in_a_row_each_wait_for_the_next(era: Era) -> None:
    served: Any = cancel_server.server
    for _ in range(3):
        behind: Any = partial(open_memory, served)
        served = proxy(behind)
    async with open_memory(served, **options(era)) as client:
        first = await left(client, {"cleanup": 0.3})
        assert (first.state, (first.cleanup or 0) >= 0.25) == ("stopped", True)


def in_other_era(server: Any, era: Era) -> Any:
    """A proxy that speaks the other era with the server behind."""
    other: Era = "legacy" if era == "modern" else "modern"
    return proxy(lambda **given: open_memory(server, **{**given, "era": other}))


async def test_a_proxy_between_two_eras_answers_for_both_sides(era: Era) -> None:
    async with open_memory(in_other_era(cancel_server.server, era), **options(era)) as client:
        ending = await left(client, {"cleanup": 0.3})
    assert (ending.state, ending.behind) == ("stopped", "stopped")
    assert (ending.cleanup or 0) >= 0.25


async def test_a_proxy_with_one_connection_for_all_asks_the_server_behind(era: Era) -> None:
    async with (
        open_memory(cancel_server.server, **options(era)) as behind,
        open_memory(proxy(behind), **options(era)) as client,
    ):
        ending = await left(client, {"cleanup": 0.3})
    assert (ending.state, ending.behind) == ("stopped", "stopped")


async def test_a_proxy_before_a_server_that_cannot_say_relays_the_cancel(era: Era) -> None:
    silent = Server("plain")
    silent.tool(cancel_server.slow)
    async with open_memory(proxy(partial(open_memory, silent)), **options(era)) as client:
        ending = await left(client, {})
    assert (ending.state, ending.behind) == ("relayed", None)


async def test_a_proxy_tells_of_a_handler_behind_that_does_not_end(era: Era, autojump_clock: Any) -> None:
    served = proxy(partial(open_memory, cancel_server.server), limits=Limits(cleanup_grace=2))
    async with open_memory(served, **options(era)) as client:
        ending = await left(client, {"cleanup": 30}, within=20)
        assert (ending.state, ending.behind) == ("overran", "overran")
        assert ending.seconds < 2.5
        await trio.sleep(40)


async def test_a_proxy_whose_server_is_gone_meanwhile_cannot_say(era: Era, autojump_clock: Any) -> None:
    served = proxy(partial(open_memory, server_that_says(None)), limits=Limits(cleanup_grace=2))
    async with open_memory(served, **options(era)) as client:
        assert (await left(client, {}, within=20)).state == "relayed"


async def test_what_the_server_behind_had_answered_is_finished(era: Era) -> None:
    async with open_memory(
        proxy(partial(open_memory, server_that_says({"state": "finished", "outcome": "error"}))), **options(era)
    ) as client:
        ending = await left(client, {})
    assert (ending.state, ending.outcome, ending.behind) == ("finished", "error", "finished")


async def test_a_proxy_answers_nobody_who_has_not_declared_it(era: Era) -> None:
    other = Extension("com.example/other")
    stolen = other.method("trio-mcp/cancel", dict[str, Any], dict[str, Any])
    served = proxy(partial(open_memory, cancel_server.server))
    async with open_memory(served, era=era, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(stolen.name, {"cancelToken": "x" * 22}, dict[str, Any])
    assert caught.value.code == (-32021 if era == "modern" else -32600)


async def test_a_gateway_waits_for_the_member_of_a_call(era: Era) -> None:
    async with (
        open_group({"a": MemberDescription(cancel_server.server)}, extensions=[CancelAcknowledged()]) as group,
        open_memory(gateway(group), **options(era)) as client,
    ):
        await group.settled()
        ending = await left(client, {"cleanup": 0.3}, tool="a__slow")
    assert (ending.state, ending.behind) == ("stopped", "stopped")
    assert (ending.cleanup or 0) >= 0.25


@pytest.mark.parametrize(("grace", "state"), [(0.0, "relayed"), (math.inf, "stopped")])
async def test_a_proxy_without_a_grace_or_with_an_endless_one_answers_too(era: Era, grace: float, state: str) -> None:
    served = proxy(partial(open_memory, cancel_server.server), limits=Limits(cleanup_grace=grace))
    async with open_memory(served, **options(era)) as client:
        ending = await left(client, {"cleanup": 0.1})
    assert ending.state == state
