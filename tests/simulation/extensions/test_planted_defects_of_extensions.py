"""Defects that are planted in calls, cancels and notifications are found by the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.simulation.extensions.world import simulate

from trio_mcp import CancelCause, RequestContext
from trio_mcp.client import confirming
from trio_mcp.client.client import Client
from trio_mcp.protocol.cancel_acknowledged import CancelResult
from trio_mcp.runtime.requests import runner
from trio_mcp.runtime.requests.endings import Ending, Endings
from trio_mcp.runtime.requests.host import Parking
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.server.subscriptions import ClientSubscriptions
from trio_mcp.state.connection import ConnectionState

EACH = 10_000
MOST_SEEDS = 20
"""Simulations within which a planted defect is found; most are found in the first."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of handlers that overrun their grace."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def found(what: str) -> str:
    """Simulate with one seed after another until a fault is found, and return the first with ``what`` in it."""
    for seed in range(MOST_SEEDS):
        for fault in simulate(seed, EACH).faults:
            if what in fault:
                return fault
    raise AssertionError("the defect was not found")


def test_simulation_detects_a_cancel_acknowledged_before_the_handler_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Ending.over

    async def over_at_once(self: Ending, seconds: float) -> CancelResult:
        if self.scope is not None and self.scope.from_outside is not None:
            return CancelResult("stopped")
        return await over(self, seconds)

    monkeypatch.setattr(Ending, "over", over_at_once)
    assert found("'stopped'")


def test_simulation_detects_a_handler_that_still_runs_after_it_was_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its acknowledgement comes while its tasks still clean up."""
    cancel = RequestScope.cancel

    def cancel_and_end(self: RequestScope, cancellation: Any) -> bool:
        found = cancel(self, cancellation)
        if found and self.ending is not None:
            self.ending.end(self, has_reply=False)
            self.ending = None
        return found

    monkeypatch.setattr(RequestScope, "cancel", cancel_and_end)
    assert found("said to have stopped")


def test_simulation_detects_a_duplicate_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    send, turns = RequestContext.send_notification, iter(range(10**9))

    async def send_twice(self: Any, method: Any, params: Any = None) -> None:
        await send(self, method, params)
        if next(turns) % 50 == 49:
            await send(self, method, params)

    monkeypatch.setattr(RequestContext, "send_notification", send_twice)
    assert found("told of")


def test_simulation_detects_a_lost_client_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    send, turns = Client.send_notification, iter(range(10**9))

    async def send_most(self: Any, method: Any, params: Any = None) -> None:
        if next(turns) % 20 != 19:
            await send(self, method, params)

    monkeypatch.setattr(Client, "send_notification", send_most)
    assert found("the server heard")


def test_simulation_detects_that_some_subscribers_miss_a_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    told, turns = ClientSubscriptions.send_extension_notification, iter(range(10**9))

    def tell_most(self: ClientSubscriptions, row: Any, params: Any) -> None:
        if next(turns) % 50 != 49:
            told(self, row, params)

    monkeypatch.setattr(ClientSubscriptions, "send_extension_notification", tell_most)
    assert found("all were told")


def test_simulation_detects_a_response_to_a_cancelled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reply_line = runner._reply_line

    def reply_always(scope: RequestScope, result: Any, failure: Any, cancelled_inside: Any) -> Any:
        line = reply_line(scope, result, failure, cancelled_inside)
        return line or scope.runner.replies.result(scope.request, {}, scope)

    monkeypatch.setattr(runner, "_reply_line", reply_always)
    finish = ConnectionState.finish

    def finish_always(self: ConnectionState, request: Any) -> bool:
        finish(self, request)
        return True

    monkeypatch.setattr(ConnectionState, "finish", finish_always)
    assert found("answers what was cancelled")


def test_simulation_detects_a_handler_that_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is forgotten, and it runs on until its server ends, or its caller's deadline."""
    cancel, turns = RequestScope.cancel, iter(range(10**9))

    def cancel_most(self: RequestScope, cancellation: Any) -> bool:
        if cancellation.cause is CancelCause.PEER and next(turns) % 20 == 19 and self.nursery is not None:
            nursery, self.nursery = self.nursery, None
            try:
                return cancel(self, cancellation)
            finally:
                self.nursery = nursery
        return cancel(self, cancellation)

    monkeypatch.setattr(RequestScope, "cancel", cancel_most)
    assert found("still runs")


def test_simulation_detects_that_a_finished_request_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    finish, turns = ConnectionState.finish, iter(range(10**9))

    def finish_most(self: ConnectionState, request: Any) -> bool:
        found = finish(self, request)
        if next(turns) % 20 == 19:
            self._inbound[request.id] = request
        return found

    monkeypatch.setattr(ConnectionState, "finish", finish_most)
    assert found("requests are left")


def test_simulation_detects_that_records_of_how_cancelled_calls_ended_are_never_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Endings, "_forget_old", lambda _: None)
    assert found("endings are left")


def test_simulation_detects_that_a_handler_that_awaits_input_is_never_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parking, "_ring", lambda *_: None)
    monkeypatch.setattr(Parking, "remove", lambda *_: False)
    assert found("parked")


def test_simulation_detects_a_cancel_request_that_waits_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbound:
        CancelScope = staticmethod(lambda shield, **_: trio.CancelScope(shield=shield))
        current_time = staticmethod(trio.current_time)

    over = Ending.over

    async def over_late(self: Ending, seconds: float) -> CancelResult:
        return await over(self, seconds + 20)

    monkeypatch.setattr(confirming, "trio", Unbound)
    monkeypatch.setattr(Ending, "over", over_late)
    assert found("left for")
