from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.fleet.fault_proxy import open_proxy
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE

from trio_mcp.fleet.storage.redis import subscription
from trio_mcp.fleet.storage.redis.link import ChannelMessage, Link, open_link
from trio_mcp.stores.task_store import HINTS_LOST, HintsLost

LONG = 30.0


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - the server and the link tell no event
            await trio.sleep(0.01)


async def up(link: Link) -> None:
    with trio.fail_after(PATIENCE):
        await link.wait_until_up()


async def next_of(messages: AsyncIterator[ChannelMessage | HintsLost]) -> ChannelMessage | HintsLost:
    with trio.fail_after(PATIENCE):
        return await anext(messages)


def kill_subscriptions(server: RedisServer) -> None:
    assert server.ask("CLIENT", "KILL", "TYPE", "pubsub") >= 1


async def test_redis_subscription_yields_in_order_all_messages_published_after_it_was_entered(
    redis_server: RedisServer,
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        async with link.subscribe(["a", "b"]) as messages:
            for number in range(5):
                assert redis_server.ask("PUBLISH", "ab"[number % 2], number) == 1
            redis_server.ask("PUBLISH", "c", "other")
            for number in range(5):
                assert await next_of(messages) == ChannelMessage("ab"[number % 2], str(number).encode())
        await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a", "b") == [b"a", 0, b"b", 0])
        assert link.gaps == 0


async def test_each_redis_subscriber_gets_each_message_of_its_channels(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link, link.subscribe(["a"]) as first:
        async with link.subscribe(["a", "b"]) as second:
            redis_server.ask("PUBLISH", "a", 1)
            redis_server.ask("PUBLISH", "b", 2)
            assert await next_of(first) == ChannelMessage("a", b"1")
            assert [await next_of(second), await next_of(second)] == [
                ChannelMessage("a", b"1"),
                ChannelMessage("b", b"2"),
            ]
        redis_server.ask("PUBLISH", "a", 3)
        assert await next_of(first) == ChannelMessage("a", b"3")
        async with link.subscribe(["b"]) as third:
            redis_server.ask("PUBLISH", "b", 4)
            assert await next_of(third) == ChannelMessage("b", b"4")
        assert redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", 1]


async def test_client_without_subscribers_holds_no_redis_subscription(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        assert redis_server.ask("PUBSUB", "CHANNELS") == []
        async with link.subscribe(["a"]):
            channels = sorted(redis_server.ask("PUBSUB", "CHANNELS"))
            assert channels[0] == b"a"
            assert channels[1].startswith(b"trio-mcp:proof:")
    await until(lambda: redis_server.ask("PUBSUB", "CHANNELS") == [])


async def test_lost_redis_subscription_is_restored_and_reported_as_lost_messages(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["a", "b"]) as messages, link.subscribe(["a"]) as others:
            for turn in range(8):
                kill_subscriptions(redis_server)
                began = trio.current_time()
                assert await next_of(messages) is HINTS_LOST  # once for both channels
                assert await next_of(others) is HINTS_LOST
                assert trio.current_time() - began < 10, "delays have a bound"
                redis_server.ask("PUBLISH", "a", turn)
                assert await next_of(messages) == ChannelMessage("a", str(turn).encode())
                assert await next_of(others) == ChannelMessage("a", str(turn).encode())
            assert link.gaps == 16
        assert link.is_up
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_redis_subscription_lost_for_the_first_time_is_restored_without_delay(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_FIRST_DELAY", 10 * PATIENCE)
    monkeypatch.setattr(subscription, "_LONGEST_DELAY", 10 * PATIENCE)
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["a"]) as messages:
            kill_subscriptions(redis_server)
            assert await next_of(messages) is HINTS_LOST


async def test_redis_subscription_lost_after_a_long_time_is_restored_without_delay(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_FIRST_DELAY", 10 * PATIENCE)
    monkeypatch.setattr(subscription, "_LONGEST_DELAY", 10 * PATIENCE)
    monkeypatch.setattr(subscription, "_GOOD", 0.0)
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["a"]) as messages:
            for _ in range(3):
                kill_subscriptions(redis_server)
                assert await next_of(messages) is HINTS_LOST


async def test_resubscription_delay_increases_only_after_failed_connection_attempts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of losses before: a reader is deaf for as long as it takes to subscribe again."""
    asked: list[int] = []
    monkeypatch.setattr(subscription, "growing_delay", lambda attempt, **_: asked.append(attempt) or 0.0)
    async with (
        open_proxy(redis_server.port) as proxy,
        open_link(proxy.url, limit=LONG) as link,
        link.subscribe(["a"]) as messages,
    ):
        for _ in range(20):
            kill_subscriptions(redis_server)
            assert await next_of(messages) is HINTS_LOST
        assert asked == []
        proxy.refuses = True
        proxy.cut_all()
        await until(lambda: len(asked) >= 4)
        proxy.refuses = False
        assert asked[:4] == [1, 2, 3, 4]
        assert await next_of(messages) is HINTS_LOST
        asked.clear()
        kill_subscriptions(redis_server)
        assert await next_of(messages) is HINTS_LOST
        assert asked == []


async def test_resubscription_after_immediate_disconnects_is_rate_limited(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_proxy(redis_server.port) as proxy,
        open_link(proxy.url, limit=LONG) as link,
        link.subscribe(["a"]),
    ):
        begun = trio.current_time()
        before = proxy.connections
        for _ in range(10):
            await until(lambda: redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub") >= 1)
        await until(lambda: redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub") >= 1)
        assert proxy.connections - before <= 1 + (trio.current_time() - begun) / subscription._GOOD


async def test_subscriber_that_starts_during_a_redis_outage_first_gets_a_report_of_lost_messages(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    async with open_link(server.url, limit=0.1) as link, link.subscribe(["a"]) as messages:
        with trio.move_on_after(0.5):
            await anext(messages)
            raise AssertionError("nothing may come")
        with server:
            assert await next_of(messages) is HINTS_LOST
            assert server.ask("PUBLISH", "a", 1) == 1
            assert await next_of(messages) == ChannelMessage("a", b"1")


async def test_client_resubscribes_to_a_killed_redis_after_its_restart(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with open_link(server.url, limit=LONG) as link, link.subscribe(["a"]) as messages:
            server.restart()
            assert await next_of(messages) is HINTS_LOST
            assert server.ask("PUBLISH", "a", 1) == 1
            assert await next_of(messages) == ChannelMessage("a", b"1")


async def test_slow_redis_subscriber_gets_a_report_of_lost_messages_if_its_buffer_is_full(
    redis_server: RedisServer,
) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["a"]) as slow, link.subscribe(["b"]) as quick:
            for first in range(0, 3000, 100):
                await link.pipeline([("PUBLISH", "a", number) for number in range(first, first + 100)])
            await link.pipeline([("PUBLISH", "b", "done")])
            assert await next_of(quick) == ChannelMessage("b", b"done")
            assert [await next_of(slow) for _ in range(1000)] == [
                ChannelMessage("a", str(number).encode()) for number in range(1000)
            ]
            assert await next_of(slow) is HINTS_LOST
            await link.pipeline([("PUBLISH", "a", "more")])
            assert await next_of(slow) == ChannelMessage("a", b"more")
            assert link.gaps == 1


async def test_client_detects_a_redis_subscription_that_was_dropped_silently(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_LIVENESS_INTERVAL", 0.1)
    monkeypatch.setattr(subscription, "_IDLE", 10 * PATIENCE)
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=1) as link:
        await up(link)
        async with link.subscribe(["a"]) as messages:
            await trio.sleep(0.5)  # some proofs come back
            assert proxy.connections == 2
            proxy.fail("swallow", after=0, for_connection=1)
            assert await next_of(messages) is HINTS_LOST
            redis_server.ask("PUBLISH", "a", 1)
            assert await next_of(messages) == ChannelMessage("a", b"1")
        assert proxy.connections == 3


async def test_subscriber_of_a_frozen_redis_gets_its_messages_or_a_report_of_lost_messages(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with open_link(server.url, limit=0.5) as link:
            await up(link)
            async with link.subscribe(["a"]) as messages:
                server.stop()
                await until(lambda: not link.is_up)
                server.go_on()
                await up(link)
                server.ask("PUBLISH", "a", 1)
                while (heard := await next_of(messages)) is HINTS_LOST:
                    pass
                assert heard == ChannelMessage("a", b"1")


async def test_redis_subscription_that_is_not_permitted_is_logged_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(
        tmp_path, "user default on nopass ~* &* +@all", "user ann on >sesame ~* resetchannels +@all"
    ) as server:
        async with open_link(server.url.replace("//", "//ann:sesame@"), limit=1) as link:
            await up(link)
            with caplog.at_level(logging.INFO):
                async with link.subscribe(["a"]) as messages:
                    await until(lambda: "NOPERM" in caplog.text)
                    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1
                    server.ask("ACL", "SETUSER", "ann", "allchannels")
                    assert await next_of(messages) is HINTS_LOST
    assert "sesame" not in caplog.text


async def test_redis_subscription_continues_when_the_command_connection_is_replaced(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["a"]) as messages:
            redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
            redis_server.ask("PUBLISH", "a", 1)
            assert await next_of(messages) == ChannelMessage("a", b"1")
            assert link.gaps == 0


async def test_redis_channel_that_is_subscribed_again_immediately_receives_messages(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["other"]):
            for number in range(50):
                async with link.subscribe(["a"]) as messages:
                    assert redis_server.ask("PUBLISH", "a", number) == 1
                    assert await next_of(messages) == ChannelMessage("a", str(number).encode())


async def test_late_confirmation_of_a_cancelled_redis_subscription_does_not_confirm_a_new_subscription(
    redis_server: RedisServer,
) -> None:
    async with open_proxy(redis_server.port) as proxy, open_link(proxy.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["other"]), trio.open_nursery() as nursery:
            first = len(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:3\r\n")
            fault = proxy.fail("hold", after=first, for_connection=1)
            with trio.CancelScope() as scope:
                scope.cancel(reason="at once")
                async with link.subscribe(["a"]):
                    pass
            entered = trio.Event()

            async def enter() -> None:
                async with link.subscribe(["a"]):
                    entered.set()

            nursery.start_soon(enter)
            await fault.happened.wait()
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert not entered.is_set()
            proxy.let_go()
            await until(entered.is_set)


async def test_cancelled_redis_subscription_leaves_no_channel_subscribed(redis_server: RedisServer) -> None:
    async with open_link(redis_server.url, limit=LONG) as link:
        await up(link)
        async with link.subscribe(["other"]) as messages:
            for _ in range(200):
                with trio.CancelScope() as scope:
                    scope.cancel(reason="at once")
                    async with link.subscribe(["a"]):
                        await trio.sleep_forever()
            redis_server.ask("PUBLISH", "other", 1)
            assert await next_of(messages) == ChannelMessage("other", b"1")
            await until(lambda: redis_server.ask("PUBSUB", "NUMSUB", "a") == [b"a", 0])


@pytest.mark.parametrize(
    "stranger", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"%1\r\n:1\r\n:2\r\n", b">1\r\n+x\r\n", b"\xff\xfe\r\n"]
)
async def test_client_reconnects_and_continues_after_an_unexpected_redis_reply(
    redis_server: RedisServer, stranger: bytes
) -> None:
    async with (
        open_proxy(redis_server.port) as proxy,
        open_link(proxy.url, limit=LONG) as link,
        link.subscribe(["a"]) as messages,
    ):
        proxy.corrupt = lambda data: data + stranger if b"message" in data else data
        redis_server.ask("PUBLISH", "a", 1)
        while await next_of(messages) is not HINTS_LOST:
            pass
        proxy.corrupt = None
        while redis_server.ask("PUBLISH", "a", 2) == 0:  # noqa: ASYNC110 - Redis tells nobody
            await trio.sleep(0.01)
        while await next_of(messages) != ChannelMessage("a", b"2"):
            pass
