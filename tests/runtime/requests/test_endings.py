"""What is remembered of how requests ended, for how long, and for whom."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from trio.testing import MockClock

from trio_mcp import CodedError, Limits
from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.concurrency.wakeups import Alarms
from trio_mcp.protocol.revisions import REVISIONS
from trio_mcp.runtime.cancellation import CancelCause, Cancellation
from trio_mcp.runtime.peer import PrincipalId
from trio_mcp.runtime.requests.endings import Endings

ADA, EVE = PrincipalId("https://issuer", "ada"), PrincipalId("https://issuer", "eve")
REVISION = REVISIONS["2026-07-28"]


@attrs.define
class FakeMethod:
    ahead: bool = False


@attrs.define
class FakeRequest:
    """As much of a request as matters here."""

    meta: dict[str, Any] = attrs.Factory(dict[str, Any])
    params: dict[str, Any] = attrs.Factory(dict[str, Any])
    error: CodedError | None = None
    method: FakeMethod = attrs.Factory(FakeMethod)
    revision: Any = REVISION


@attrs.define
class FakePeer:
    principal: PrincipalId | None = None


@attrs.define
class FakeExchange:
    peer: FakePeer


@attrs.define
class FakeTicket:
    caller: Caller


@attrs.define(eq=False)
class FakeScope:
    """As much of the scope of a request as matters here; cancels are noted."""

    request: FakeRequest
    exchange: FakeExchange
    ticket: FakeTicket
    from_outside: Cancellation | None = None
    handler_task: object = "runs"
    task: Any = None
    ending: Any = None
    aborts: list[tuple[CancelCause, str | None]] = attrs.Factory(list[Any])

    def abort(self, cause: CancelCause, reason: str | None) -> None:
        self.aborts.append((cause, reason))
        self.from_outside = self.from_outside or Cancellation(cause, reason, trio.current_time())


def entered(
    endings: Endings, token: str, principal: PrincipalId | None = None, caller: Caller | None = None
) -> FakeScope:
    request = FakeRequest({"trio-mcp/cancelToken": token})
    scope: Any = FakeScope(request, FakeExchange(FakePeer(principal)), FakeTicket(caller or Caller()))
    endings.enter(scope)
    return scope


def asked(endings: Endings, token: str, principal: PrincipalId | None = None) -> dict[str, Any] | None:
    request: Any = FakeRequest(params={"cancelToken": token, "reason": "enough"})
    return endings.cancel(request, principal)


def some(**limits: Any) -> Endings:
    return Endings(Alarms(), Limits(**limits), 30.0)


async def test_confirmed_cancel_stops_the_request_and_returns_how_the_request_ended(autojump_clock: MockClock) -> None:
    endings = some()
    scope = entered(endings, "t" * 16)
    assert asked(endings, "t" * 16) is None
    assert asked(endings, "t" * 16) is None
    assert scope.aborts == [(CancelCause.PEER, "enough")] * 2, "which the request takes once"
    scope.ending.end(scope, has_reply=False)
    assert asked(endings, "t" * 16) == {"state": "stopped", "cleanupMs": 0}
    assert len(scope.aborts) == 2


async def test_cancel_acknowledgement_reports_state_finished_if_the_reply_existed_before_the_cancel() -> None:
    endings = some()
    scope = entered(endings, "t" * 16)
    assert asked(endings, "t" * 16) is None
    scope.ending.end(scope, has_reply=True)
    assert asked(endings, "t" * 16) == {"state": "finished", "outcome": "result"}


async def test_cancel_acknowledgement_reports_whether_the_reply_was_a_result_or_error() -> None:
    endings = some()
    scope = entered(endings, "t" * 16)
    scope.request.error = CodedError(-32603, "no")
    scope.ending.end(scope, has_reply=True)
    assert asked(endings, "t" * 16) == {"state": "finished", "outcome": "error"}


async def test_cancel_acknowledgement_reports_state_abandoned_if_a_handler_thread_still_runs(
    autojump_clock: MockClock,
) -> None:
    endings = some()
    scope = entered(endings, "t" * 16)
    assert asked(endings, "t" * 16) is None
    scope.ending.is_abandoned = True
    scope.ending.end(scope, has_reply=False)
    assert asked(endings, "t" * 16) == {"state": "abandoned", "cleanupMs": 0}


async def test_confirmed_cancel_of_a_call_does_not_cancel_the_mcp_task_that_the_call_has_started() -> None:
    @attrs.define
    class FakeTask:
        has_started: bool

    endings = some()
    scope = entered(endings, "t" * 16)
    scope.task = FakeTask(has_started=True)
    assert asked(endings, "t" * 16) is None
    assert scope.aborts == []
    scope.task = FakeTask(has_started=False)
    assert asked(endings, "t" * 16) is None
    assert len(scope.aborts) == 1


async def test_cancel_token_of_another_principal_is_reported_as_unknown() -> None:
    endings = some()
    scope = entered(endings, "t" * 16, ADA)
    for other in (EVE, None):
        assert asked(endings, "t" * 16, other) == {"state": "unknown"}
    assert scope.aborts == []
    same = entered(endings, "t" * 16, EVE)
    assert same.ending is not None
    assert asked(endings, "t" * 16, ADA) is None


async def test_cancel_token_of_a_request_is_ignored_if_a_running_request_already_uses_that_token() -> None:
    endings = some()
    first, second = entered(endings, "t" * 16), entered(endings, "t" * 16)
    assert (first.ending is not None, second.ending) == (True, None)
    first.ending.end(first, has_reply=True)
    third = entered(endings, "t" * 16)
    assert third.ending is not None
    assert asked(endings, "t" * 16) is None
    assert len(endings) == 1


async def test_caller_with_too_many_stored_outcomes_of_cancelled_calls_loses_its_oldest_outcome() -> None:
    endings, ada, eve = some(max_endings=2, max_server_endings=4), Caller(), Caller()

    def over(token: str, caller: Caller) -> None:
        scope = entered(endings, token * 16, None, caller)
        scope.ending.end(scope, has_reply=True)

    def known() -> str:
        return "".join(token for token in "abcdefgh" if asked(endings, token * 16) != {"state": "unknown"})

    over("a", ada)
    for token in "bcd":
        over(token, eve)
    assert known() == "acd"
    over("e", Caller())
    assert known() == "acde"
    over("f", Caller())
    assert known() == "cdef"
    assert len(endings) == 4


async def test_stored_outcomes_of_cancelled_calls_are_deleted_after_ending_timeout(autojump_clock: Any) -> None:
    alarms = Alarms()
    endings = Endings(alarms, Limits(ending_timeout=10), 30.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        for token in "abc":
            scope = entered(endings, token * 16)
            scope.ending.end(scope, has_reply=True)
            await trio.sleep(4)
        assert len(endings) == 2
        await trio.sleep(3)
        assert len(endings) == 1
        await trio.sleep(4)
        assert len(endings) == 0
        nursery.cancel_scope.cancel()
