"""Why a request was cancelled, and what of that the peer is told."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.jsonrpc.errors import CodedError, ProtocolViolation
from trio_mcp.protocol.errors import BadAnswer
from trio_mcp.runtime.cancellation import DEADLINE_PASSED, CancelCause, Cancellation, reason_of


async def cancelled_by(**told: str) -> trio.Cancelled:
    with trio.CancelScope() as scope:
        scope.cancel(**told)
        with pytest.raises(trio.Cancelled) as caught:
            await trio.lowlevel.checkpoint()
    return caught.value


async def test_explicit_cancel_reason_is_sent_to_the_peer() -> None:
    assert reason_of(await cancelled_by(reason="enough")) == "enough"
    assert reason_of(await cancelled_by()) == "cancelled by the caller"
    assert reason_of(await cancelled_by(reason="")) == "cancelled by the caller"


async def test_call_cancelled_by_a_trio_deadline_sends_the_deadline_as_reason(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1), pytest.raises(trio.Cancelled) as caught:
        await trio.sleep_forever()
    assert reason_of(caught.value) == DEADLINE_PASSED == "the caller's deadline passed"


async def test_cancel_reasons_that_trio_generates_are_not_sent() -> None:
    seen = list[str]()

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            seen.append(reason_of(cancelled))
            raise

    with pytest.RaisesGroup(LookupError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            raise LookupError
    assert seen == ["the caller is gone"]


def test_exception_text_is_sent_as_cancel_reason_only_for_coded_errors() -> None:
    assert reason_of(CodedError(1, "no")) == "no"
    assert reason_of(BadAnswer("no")) == "Invalid params: no"
    assert reason_of(ProtocolViolation("secret")) == "the answer makes no sense"
    assert reason_of(LookupError("secret")) == "the caller is gone"


@pytest.mark.parametrize(("reason", "words"), [("enough", "enough"), (None, "shutdown"), ("", "shutdown")])
def test_str_of_a_cancellation_is_the_reason_if_given_and_otherwise_the_cause(reason: str | None, words: str) -> None:
    assert Cancellation(CancelCause.SHUTDOWN, reason, 5).text == words
