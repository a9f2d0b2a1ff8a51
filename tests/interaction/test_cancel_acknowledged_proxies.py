"""trio-mcp/cancelAcknowledged through proxies and gateways."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from tests.interaction import cancel_server
from tests.interaction.test_cancel_acknowledged_wires import Era, left, options, server_that_says

from trio_mcp import (
    CancelAcknowledged,
    ConnectionLost,
    Limits,
    PeerError,
    Server,
    confirm_cancels,
    gateway,
    open_memory,
    proxy,
)
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.proxying import forwarding
from trio_mcp.runtime.cancellation import CancelCause
from trio_mcp.runtime.requests.scope import current_request
from trio_mcp.types import Extension


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


async def test_each_of_three_chained_proxies_waits_for_the_cancelled_handler(era: Era) -> None:
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


async def test_proxy_between_legacy_and_modern_peers_confirms_that_the_handler_was_cancelled(era: Era) -> None:
    async with open_memory(in_other_era(cancel_server.server, era), **options(era)) as client:
        ending = await left(client, {"cleanup": 0.3})
    assert (ending.state, ending.behind) == ("stopped", "stopped")
    assert (ending.cleanup or 0) >= 0.25


async def test_proxy_with_a_shared_connection_confirms_that_the_backend_handler_stopped(era: Era) -> None:
    async with (
        open_memory(cancel_server.server, **options(era)) as behind,
        open_memory(proxy(behind), **options(era)) as client,
    ):
        ending = await left(client, {"cleanup": 0.3})
    assert (ending.state, ending.behind) == ("stopped", "stopped")


async def test_proxy_reports_state_relayed_if_the_backend_lacks_the_cancel_acknowledged_extension(era: Era) -> None:
    silent = Server("plain")
    silent.tool(cancel_server.slow)
    async with open_memory(proxy(partial(open_memory, silent)), **options(era)) as client:
        ending = await left(client, {})
    assert (ending.state, ending.behind) == ("relayed", None)


async def test_proxy_reports_state_overran_if_the_handler_in_the_backend_does_not_end(
    era: Era, autojump_clock: Any
) -> None:
    served = proxy(partial(open_memory, cancel_server.server), limits=Limits(cleanup_grace=2))
    async with open_memory(served, **options(era)) as client:
        ending = await left(client, {"cleanup": 30}, within=20)
        assert (ending.state, ending.behind) == ("overran", "overran")
        assert ending.seconds < 2.5
        await trio.sleep(40)


async def test_proxy_reports_state_relayed_if_the_backend_does_not_answer(era: Era, autojump_clock: Any) -> None:
    served = proxy(partial(open_memory, server_that_says(None)), limits=Limits(cleanup_grace=2))
    async with open_memory(served, **options(era)) as client:
        assert (await left(client, {}, within=20)).state == "relayed"


async def test_proxy_reports_state_relayed_if_its_backend_connection_was_lost_before_the_cancel(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = forwarding.upstream_error

    def convert_after_cancel(error: Any) -> Any:
        # The client's cancel arrives when the forwarded call has failed, and before the proxy has replied.
        current_request.get().abort(CancelCause.PEER, "enough")
        return convert(error)

    monkeypatch.setattr(forwarding, "upstream_error", convert_after_cancel)
    async with (
        open_memory(cancel_server.server, **options(era)) as behind,
        open_memory(proxy(behind), **options(era)) as client,
    ):
        with confirm_cancels(within=20) as endings:
            async with trio.open_nursery() as nursery:
                begun = trio.Event()
                nursery.start_soon(partial(client.call_tool, "slow", on_progress=lambda _: begun.set()))  # pyright: ignore[reportUnknownLambdaType]
                await begun.wait()
                outbound = behind._connection.outbound
                (request,) = outbound._state.outbound
                outbound._state.abandon(request)
                outbound.settle(request, None, ConnectionLost("gone"))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
    [ending] = endings
    assert (ending.state, ending.behind) == ("relayed", None)


async def test_proxy_reports_state_finished_if_the_backend_had_already_answered(era: Era) -> None:
    async with open_memory(
        proxy(partial(open_memory, server_that_says({"state": "finished", "outcome": "error"}))), **options(era)
    ) as client:
        ending = await left(client, {})
    assert (ending.state, ending.outcome, ending.behind) == ("finished", "error", "finished")


async def test_proxy_refuses_cancel_request_from_client_without_the_extension(era: Era) -> None:
    other = Extension("com.example/other")
    stolen = other.method("trio-mcp/cancel", dict[str, Any], dict[str, Any])
    served = proxy(partial(open_memory, cancel_server.server))
    async with open_memory(served, era=era, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(stolen.name, {"cancelToken": "x" * 22}, dict[str, Any])
    assert caught.value.code == (-32021 if era == "modern" else -32600)


async def test_gateway_waits_for_the_server_behind_it_that_runs_the_cancelled_call(era: Era) -> None:
    async with (
        open_group({"a": MemberDescription(cancel_server.server)}, extensions=[CancelAcknowledged()]) as group,
        open_memory(gateway(group), **options(era)) as client,
    ):
        await group.settled()
        ending = await left(client, {"cleanup": 0.3}, tool="a__slow")
    assert (ending.state, ending.behind) == ("stopped", "stopped")
    assert (ending.cleanup or 0) >= 0.25


@pytest.mark.parametrize(("grace", "state"), [(0.0, "relayed"), (math.inf, "stopped")])
async def test_proxy_answers_cancel_request_even_if_cleanup_grace_is_zero_or_infinite(
    era: Era, grace: float, state: str
) -> None:
    served = proxy(partial(open_memory, cancel_server.server), limits=Limits(cleanup_grace=grace))
    async with open_memory(served, **options(era)) as client:
        ending = await left(client, {"cleanup": 0.1})
    assert ending.state == state
