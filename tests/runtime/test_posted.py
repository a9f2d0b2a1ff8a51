"""Requests of ours for whose end no task waits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.test_outbound import PARENT, FakeTracer, Side, cancel_of, side

from trio_mcp import ConnectionLost, PeerError
from trio_mcp.protocol.errors import MethodUnavailable
from trio_mcp.protocol.meta import TRACEPARENT
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.calls import DetachedCall
from trio_mcp.runtime.outbound import answering
from trio_mcp.runtime.outbox import Outbox


class Heard:
    """What a poster is told."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, Any, Any]] = []

    def receive_outcome(self, posted: DetachedCall, result: Any, error: Any) -> None:
        self.ends.append((posted.name, result, error))


def post(
    this: Side, heard: Heard, method: str = "tools/call", name: str = "a", outbox: Outbox | None = None
) -> DetachedCall:
    return this.outbound.send_detached(method, {"name": "x"}, LATEST_LEGACY, heard, name, outbox or this.outbox)


async def test_result_of_a_request_that_no_task_awaits_is_passed_to_the_owner_of_the_request() -> None:
    heard = Heard()
    async with side() as (this, _):
        post(this, heard)
        assert await this.sent() == [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}]
        (request,) = this.state.outbound
        this.settle(1, {"content": []})
        assert heard.ends == [("a", {"content": []}, None)]
        with pytest.raises(KeyError):
            this.outbound.call_of(request)


async def test_error_response_to_a_request_that_no_task_awaits_is_passed_to_the_owner_of_the_request() -> None:
    heard, error = Heard(), PeerError(-1, "no")
    async with side() as (this, _):
        post(this, heard)
        this.settle(1, error=error)
        assert heard.ends == [("a", None, error)]


async def test_connection_loss_during_a_request_that_no_task_awaits_is_passed_to_the_owner() -> None:
    heard = Heard()
    async with side() as (this, _):
        post(this, heard, name="a")
        post(this, heard, name="b")
        lost = ConnectionLost("gone")
        this.outbound.fail_all(lost)
        assert heard.ends == [("a", None, lost), ("b", None, lost)]
        with pytest.raises(ConnectionLost):
            post(this, heard)


async def test_abandoned_request_that_no_task_awaits_is_withdrawn_if_unsent_and_cancelled_if_sent() -> None:
    heard = Heard()
    async with side() as (this, _):
        waiting = post(this, heard)
        this.outbound.abandon_detached(waiting, "enough")
        assert await this.sent() == []
        sent = post(this, heard)
        await this.sent()
        this.outbound.abandon_detached(sent, "enough")
        assert await this.sent() == [cancel_of(2, "enough")]
        assert this.state.outbound == ()
        this.outbound.abandon_detached(sent, "enough")
        assert await this.sent() == []
    assert heard.ends == [], "who takes a request back need not be told"


async def test_abandoned_request_that_no_task_awaits_sends_no_cancel_if_cancels_are_disabled() -> None:
    heard = Heard()
    async with side(send_cancels=False) as (this, _):
        sent = post(this, heard)
        await this.sent()
        this.outbound.abandon_detached(sent, "enough")
        assert await this.sent() == []


async def test_request_that_no_task_awaits_cannot_be_abandoned_after_its_answer() -> None:
    heard = Heard()
    async with side() as (this, _):
        posted = post(this, heard)
        await this.sent()
        this.settle(1, {})
        this.outbound.abandon_detached(posted, "enough")
        assert await this.sent() == []


async def test_request_that_no_task_awaits_and_its_cancel_use_the_given_outbox() -> None:
    heard, other = Heard(), Outbox(1000)
    async with side() as (this, _):
        posted = post(this, heard, outbox=other)
        assert b"tools/call" in other.take_nowait()
        this.outbound.abandon_detached(posted, "enough")
        assert b"notifications/cancelled" in other.take_nowait()
        assert await this.sent() == []


async def test_request_that_no_task_awaits_is_traced_from_start_to_end() -> None:
    heard, tracer = Heard(), FakeTracer()
    async with side(tracer=tracer) as (this, _):
        post(this, heard)
        (request,) = await this.sent()
        assert request["params"] == {"name": "x", "traced": True}
        this.settle(1, {"content": []})
        assert tracer.spans[0].ends == [({"content": []}, None)]


async def test_request_that_no_task_awaits_contains_the_current_trace_context() -> None:
    heard = Heard()
    async with side() as (this, _):
        with answering({TRACEPARENT: PARENT}):
            post(this, heard)
        (request,) = await this.sent()
        assert request["params"]["_meta"] == {TRACEPARENT: PARENT}


async def test_request_that_no_task_awaits_is_not_sent_if_the_revision_lacks_its_method() -> None:
    async with side() as (this, _):
        with pytest.raises(MethodUnavailable):
            post(this, Heard(), "acme/do")
        assert await this.sent() == []
