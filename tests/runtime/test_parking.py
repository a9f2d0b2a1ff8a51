"""What waits for its caller to come back."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock

from trio_mcp.concurrency.fair_share import Caller, Callers
from trio_mcp.concurrency.wakeups import Alarms
from trio_mcp.runtime.requests.host import Parking


class Lot:
    """A `Parking` of names; what expires is forgotten, as by `RequestRunner.cancel`."""

    def __init__(self, alarms: Alarms, timeout: float, most: int) -> None:
        self.expired: list[tuple[str, str]] = []
        self._callers = Callers()
        self.parking: Any = Parking[str](alarms, timeout, most, self._expire)

    def _expire(self, name: str, reason: str) -> None:
        self.expired.append((name, reason))
        self.parking.remove(f"request of {name}")

    def keep(self, name: str, party: object = "ada", caller: Caller | str | None = None) -> None:
        """``caller``: the party whose share it takes, if that is not the one that may come back."""
        if not isinstance(caller, Caller):
            caller = self._callers.of_principal(party if caller is None else caller)
        self.parking.add(name.encode(), name, f"request of {name}", party, caller)


@asynccontextmanager
async def lot(timeout: float = 30, most: int = 100) -> AsyncGenerator[Lot]:
    async with trio.open_nursery() as nursery:
        alarms = Alarms()
        nursery.start_soon(alarms.run)
        yield Lot(alarms, timeout, most)
        nursery.cancel_scope.cancel()


async def test_handler_that_awaits_input_can_be_resumed_only_by_its_own_caller(autojump_clock: MockClock) -> None:
    async with lot() as one:
        one.keep("a", "ada")
        assert one.parking.find(b"a", "ada") == "a"
        assert one.parking.find(b"a", "eve") is None
        assert one.parking.find(b"a", None) is None
        assert one.parking.find(b"b", "ada") is None


async def test_handler_that_is_removed_while_awaiting_input_cannot_be_found_and_cannot_expire(
    autojump_clock: MockClock,
) -> None:
    async with lot() as one:
        one.keep("a")
        one.keep("b")
        assert one.parking.remove("request of a")
        assert not one.parking.remove("request of a")
        assert one.parking.find(b"a", "ada") is None
        assert one.parking.named("request of a") is None
        assert one.parking.named("request of b") == "b"
        assert (len(one.parking), list(one.parking), one.parking.of("ada")) == (1, ["b"], ["b"])
        await trio.sleep(31)
        assert one.expired == [("b", "no answers came within 30 seconds")]
        assert (len(one.parking), one.parking.of("ada"), one.parking._callers._of_callers) == (0, [], {})


async def test_each_handler_that_awaits_input_expires_at_its_own_time(autojump_clock: MockClock) -> None:
    async with lot() as one:
        one.keep("a")
        await trio.sleep(20)
        one.keep("b")
        await trio.sleep(10.5)
        assert [name for name, _ in one.expired] == ["a"]
        await trio.sleep(19)
        assert [name for name, _ in one.expired] == ["a"]
        await trio.sleep(1)
        assert [name for name, _ in one.expired] == ["a", "b"]


async def test_handlers_that_await_input_do_not_expire_without_a_retry_timeout(autojump_clock: MockClock) -> None:
    async with lot(math.inf) as one:
        one.keep("a")
        await trio.sleep(10**9)
        assert one.parking.find(b"a", "ada") == "a"


async def test_oldest_waiting_handler_of_a_caller_is_removed_if_the_caller_has_too_many_waiting_handlers(
    autojump_clock: MockClock,
) -> None:
    async with lot(most=2) as one:
        one.keep("e", "eve")
        for name in "abc":
            one.keep(name)
        assert one.expired == [("a", "too many handlers wait for answers")]
        assert (one.parking.of("ada"), one.parking.of("eve"), one.parking.of("nobody")) == (["b", "c"], ["e"], [])
        assert list(one.parking) == ["e", "b", "c"]


async def test_anonymous_caller_above_its_limit_removes_only_its_own_waiting_handlers(
    autojump_clock: MockClock,
) -> None:
    async with lot(most=2) as one:
        one.keep("a", "the endpoint", "ada")
        for name in "bcd":
            one.keep(name, "the endpoint", "eve")
        assert [name for name, _ in one.expired] == ["b"]
        assert one.parking.of("the endpoint") == ["a", "c", "d"]
        assert one.parking.find(b"a", "the endpoint") == "a"
        assert one.parking.remove("request of c")
        one.keep("e", "the endpoint", "eve")
        assert [name for name, _ in one.expired] == ["b"]


async def test_principal_above_its_limit_loses_waiting_handlers_of_its_connection_with_the_most(
    autojump_clock: MockClock,
) -> None:
    ada = Caller("ada")
    busy, quiet = ada.connection(), ada.connection()
    async with lot(most=3) as one:
        one.keep("first", caller=quiet)
        for name in "abcd":
            one.keep(name, caller=busy)
        assert [name for name, _ in one.expired] == ["a", "b"]
        assert one.parking.of("ada") == ["first", "c", "d"]
        assert one.parking._callers.count(quiet) == 3
