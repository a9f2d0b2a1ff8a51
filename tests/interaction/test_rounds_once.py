"""MR: code before an input request runs once, whatever the client does with the request state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import CancelCause, Limits, RequestContext, Server

from .memory_peer import MODERN, MemoryPeer, connected, connected_twice
from .rounds import ALL, ask, asked, text


@attrs.define
class Shop:
    """A server whose tool charges, asks, and ships; ``cleaned`` is why it was cancelled, where it was."""

    limits: Limits = attrs.field(factory=Limits)
    charged: list[str] = attrs.field(factory=list[str])
    cleaned: list[tuple[CancelCause, str | None]] = attrs.field(factory=list[Any])
    server: Server = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.server = Server("shop", limits=self.limits)

        @self.server.tool
        async def order(ctx: RequestContext, item: str = "tea") -> str:
            self.charged.append(item)
            try:
                roots = await ctx.list_roots()
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.cleaned.append((ctx.cancellation.cause, ctx.cancellation.reason))
                raise
            return f"{item} to {roots[0].uri}"


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def refused(peer: MemoryPeer, first: dict[str, Any], result: dict[str, Any], word: str) -> None:
    error = (await peer.retry(first, result))["error"]
    assert error["code"] == -32602
    assert word in error["message"]


async def test_request_state_can_be_used_only_once(autojump_clock: MockClock, shop: Shop) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        assert text(await peer.retry(first, result)) == "tea to file:///a"
        await refused(peer, first, result, "used already")
    assert shop.charged == ["tea"]


async def test_handler_runs_once_for_concurrent_retries_with_the_same_request_state(
    autojump_clock: MockClock, shop: Shop
) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        for request_id in ("one", "two"):
            await peer.send(peer.retry_message(first, result, id=request_id))
        assert text(await peer.reply("one")) == "tea to file:///a"
        assert (await peer.reply("two"))["error"]["code"] == -32602
    assert shop.charged == ["tea"]


async def test_server_refuses_the_request_state_of_an_earlier_retry(autojump_clock: MockClock, shop: Shop) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        second = asked(await peer.retry(first, result, {}))
        await refused(peer, first, result, "used already")
        assert text(await peer.retry(first, second)) == "tea to file:///a"
    assert shop.charged == ["tea"]


def changed(place: int) -> Callable[[str], str]:
    return lambda state: state[:place] + ("A" if state[place] != "A" else "B") + state[place + 1 :]


@pytest.mark.parametrize(
    "tamper",
    [
        changed(0),
        changed(20),
        changed(60),
        lambda state: state[:-8],
        lambda state: "",
        lambda state: "ü",
        lambda state: "A" * 5_000_000,
        lambda state: [state],
        lambda state: 7,
    ],
    ids=["nonce", "start", "middle", "cut", "empty", "foreign", "long", "list", "number"],
)
async def test_tampered_request_state_is_refused_but_the_original_is_still_accepted(
    autojump_clock: MockClock, shop: Shop, tamper: Callable[[str], Any]
) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        await refused(peer, first, {**result, "requestState": tamper(result["requestState"])}, "not issued to this")
        assert text(await peer.retry(first, result)) == "tea to file:///a"


async def test_server_refuses_a_request_state_for_another_tool_or_other_arguments(
    autojump_clock: MockClock, shop: Shop
) -> None:
    @shop.server.tool
    async def other(ctx: RequestContext, item: str = "tea") -> None:
        await ctx.list_roots()

    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order", {"item": "tea"})
        for name, arguments in (("other", {"item": "tea"}), ("order", {"item": "gold"}), ("order", {})):
            await refused(peer, peer.call_message(name, arguments), result, "another request")
        assert text(await peer.retry(first, result)) == "tea to file:///a"
    assert shop.charged == ["tea"]


async def test_server_accepts_a_request_state_if_the_arguments_come_in_another_order(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def add(a: int, b: int, ctx: RequestContext) -> int:
        await ctx.list_roots()
        return a + b

    async with connected(server, MODERN, ALL) as peer:
        _, result = await ask(peer, "add", {"a": 1, "b": 2})
        assert text(await peer.retry(peer.call_message("add", {"b": 2, "a": 1}), result)) == "3"


async def test_retry_of_input_required_call_from_another_connection_is_refused(
    autojump_clock: MockClock, shop: Shop
) -> None:
    async with connected_twice(shop.server) as (peer, stranger):
        await peer.open(MODERN, ALL)
        await stranger.open(MODERN, ALL)
        first, result = await ask(peer, "order")
        while_it_waits = (await stranger.retry(first, result))["error"]
        assert (while_it_waits["code"], "another connection" in while_it_waits["message"]) == (-32602, True)
        assert text(await peer.retry(first, result)) == "tea to file:///a"
        assert (await stranger.retry(first, result))["error"] == while_it_waits, "it learns nothing of the other"
    assert shop.charged == ["tea"]


async def test_server_refuses_the_request_state_of_another_principal(autojump_clock: MockClock, shop: Shop) -> None:
    async with connected_twice(shop.server, principals=("ada", "eve")) as (ada, eve):
        await ada.open(MODERN, ALL)
        await eve.open(MODERN, ALL)
        first, result = await ask(ada, "order")
        await refused(eve, first, result, "to this caller")
        assert text(await ada.retry(first, result)) == "tea to file:///a"
    assert shop.charged == ["tea"]


async def test_handler_is_cancelled_and_cleaned_up_if_client_does_not_retry_in_time(autojump_clock: MockClock) -> None:
    shop = Shop(Limits(retry_timeout=30))
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        assert shop.server.statistics().parked == 1
        await trio.sleep(29)
        assert shop.cleaned == []
        await trio.sleep(2)
        assert shop.cleaned == [(CancelCause.EXPIRED, "no answers came within 30 seconds")]
        await refused(peer, first, result, "expired")
        counts = shop.server.statistics()
        assert (counts.parked, counts.cancelled, counts.expired) == (0, 1, 1)
    assert shop.charged == ["tea"]


@pytest.mark.parametrize("then", [0.0, 10.0**10], ids=["back", "ahead"])
async def test_changed_system_clock_does_not_affect_the_retry_timeout(
    then: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(Limits(retry_timeout=30))
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        late, other = await ask(peer, "order")
        monkeypatch.setattr("time.time", lambda: then)
        assert text(await peer.retry(first, result)) == "tea to file:///a"
        await trio.sleep(31)
        await refused(peer, late, other, "expired")


async def test_retry_timeout_restarts_with_each_input_required_result(autojump_clock: MockClock) -> None:
    shop = Shop(Limits(retry_timeout=30))
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        for _ in range(3):
            await trio.sleep(29)
            result = asked(await peer.retry(first, result, {}))
        await trio.sleep(29)
        assert text(await peer.retry(first, result)) == "tea to file:///a"


async def test_oldest_handler_that_awaits_input_is_cancelled_if_more_than_max_parked_handlers_wait(
    autojump_clock: MockClock,
) -> None:
    shop = Shop(Limits(max_parked=2))
    async with connected(shop.server, MODERN, ALL) as peer:
        calls = [await ask(peer, "order", {"item": str(number)}) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert shop.cleaned == [(CancelCause.EXPIRED, "too many handlers wait for answers")]
        await refused(peer, *calls[0], "expired")
        assert [text(await peer.retry(*call)) for call in calls[1:]] == ["1 to file:///a", "2 to file:///a"]
        assert shop.server.statistics().expired == 1


async def test_client_that_disconnects_cancels_a_handler_that_awaits_input(
    autojump_clock: MockClock, shop: Shop
) -> None:
    async with connected_twice(shop.server) as (peer, other):
        await peer.open(MODERN, ALL)
        await other.open(MODERN, ALL)
        await ask(peer, "order")
        await peer.close()
        await trio.testing.wait_all_tasks_blocked()
        assert [cause for cause, _ in shop.cleaned] == [CancelCause.SHUTDOWN]
        assert shop.server.statistics().parked == 0
        assert text(await other.retry(*(await ask(other, "order")))) == "tea to file:///a"


@pytest.mark.parametrize("reason", ["changed my mind", None])
async def test_cancel_with_the_id_of_the_latest_request_stops_a_handler_that_awaits_input(
    autojump_clock: MockClock, shop: Shop, reason: str | None
) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        await peer.cancel(first["id"], reason)
        assert shop.cleaned == [(CancelCause.PEER, reason)]
        await refused(peer, first, result, "used already")
        assert len(peer.replies(first["id"])) == 1


async def test_cancel_with_a_reused_id_does_not_stop_the_older_handler_that_awaits_input(
    autojump_clock: MockClock, shop: Shop
) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order", id=5)
        await peer.request("tools/list", id=5)
        await peer.cancel(5)
        assert shop.cleaned == [], "the id was taken by another request, which is over"
        assert text(await peer.retry(first, result, id=6)) == "tea to file:///a"


async def test_cancel_with_the_id_of_an_earlier_request_is_ignored(autojump_clock: MockClock, shop: Shop) -> None:
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        result = asked(await peer.retry(first, result, {}))
        await peer.cancel(first["id"])
        assert shop.cleaned == []
        assert text(await peer.retry(first, result)) == "tea to file:///a"


async def test_cancel_of_the_retry_stops_the_handler(autojump_clock: MockClock) -> None:
    server, cleaned = Server("s"), trio.Event()

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        await ctx.list_roots()
        try:
            await trio.sleep_forever()
        finally:
            cleaned.set()

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "slow")
        message = peer.retry_message(first, result)
        await peer.send(message)
        await trio.testing.wait_all_tasks_blocked()
        peer.silent_about(message["id"])
        await peer.cancel(message["id"])
        assert cleaned.is_set()
        assert await peer.everything() == []


async def test_cancel_of_a_queued_retry_stops_the_handler(autojump_clock: MockClock) -> None:
    shop = Shop(Limits(max_in_flight=1))

    @shop.server.tool
    async def nap() -> None:
        await trio.sleep(50)

    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order")
        await peer.start("nap")
        message = peer.retry_message(first, result)
        await peer.send(message)
        await peer.cancel(message["id"])
        assert shop.cleaned == [(CancelCause.PEER, None)]
        assert shop.server.statistics().queued == 0


async def test_cancel_discards_a_finished_result_that_the_client_has_not_fetched(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def impatient(ctx: RequestContext) -> str:
        with trio.move_on_after(1):
            await ctx.list_roots()
        return "done"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "impatient")
        await trio.sleep(5)
        await peer.cancel(first["id"])
        assert server.statistics().parked == 0
        await refused(peer, first, result, "used already")


async def test_expired_handler_whose_cleanup_exceeds_cleanup_grace_is_reported(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s", limits=Limits(retry_timeout=5, cleanup_grace=2))

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        try:
            await ctx.list_roots()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await trio.sleep(4)

    async with connected(server, MODERN, ALL) as peer:
        await ask(peer, "slow")
        await trio.sleep(8)
        assert server.statistics().overrun == 1
    assert "still runs 2 s after its cancel" in caplog.text


async def test_arguments_of_handlers_that_await_input_count_towards_the_byte_limit(autojump_clock: MockClock) -> None:
    shop = Shop(Limits(max_inbound_bytes=3000))
    async with connected(shop.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "order", {"item": "x" * 2000})
        error = await peer.error("order", {"item": "y" * 2000})
        assert error["code"] == -31000
        assert text(await peer.retry(first, result)).startswith("xxx")
        await ask(peer, "order", {"item": "y" * 2000})
