"""What a request belongs to for the moment: a connection, or a batch."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause
from trio_mcp.protocol.methods import METHODS, Method
from trio_mcp.runtime.exchange import BatchExchange, Exchange
from trio_mcp.runtime.outbox import Outbox, Owner
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.state.connection import ConnectionState


@attrs.define(eq=False)
class FakeRequest:
    method: Method = METHODS["tools/call"]


@attrs.define(eq=False)
class FakeScope:
    name: str
    ended: list[tuple[str, CancelCause, str | None]]

    def abort(self, cause: CancelCause, reason: str | None) -> None:
        self.ended.append((self.name, cause, reason))


def exchange(principal: PrincipalId | None = None) -> Any:
    return Exchange(ConnectionState("server"), Outbox(16384), Peer(principal=principal))


def sent(one: Any) -> bytes:
    return bytes(one.outbox.take_nowait())


def test_cancelled_http_exchange_cancels_its_running_requests_oldest_first() -> None:
    one, ended = exchange(), list[tuple[str, CancelCause, str | None]]()
    requests = [FakeRequest() for _ in range(3)]
    for name, request in zip("abc", requests, strict=True):
        one.hold(request, FakeScope(name, ended))
    one.release(requests[1])
    one.release(requests[1])
    one.cancel_all(CancelCause.SHUTDOWN, "over")
    assert ended == [("a", CancelCause.SHUTDOWN, "over"), ("c", CancelCause.SHUTDOWN, "over")]


def test_request_can_end_while_its_http_exchange_cancels_all_its_running_requests() -> None:
    one, ended = exchange(), list[str]()
    requests = [FakeRequest() for _ in range(3)]

    class Ending:
        def __init__(self, request: FakeRequest) -> None:
            self.request = request

        def abort(self, cause: CancelCause, reason: str | None) -> None:
            ended.append("one")
            one.release(self.request)

    for request in requests:
        one.hold(request, Ending(request))
    one.cancel_all(CancelCause.PEER, None)
    assert ended == ["one"] * 3
    assert one.find(requests[0]) is None


def test_http_exchange_finds_a_request_by_its_id_only_while_the_request_runs() -> None:
    one, request = exchange(), FakeRequest()
    scope = FakeScope("a", [])
    assert one.find(request) is None
    one.hold(request, scope)
    assert one.find(request) is scope
    one.release(request)
    assert one.find(request) is None


def test_owner_of_an_http_exchange_is_its_principal_or_without_principal_the_exchange_itself() -> None:
    name = PrincipalId("https://login.example.com", "ada")
    nobody, ada = exchange(), exchange(name)
    assert nobody.party is nobody
    assert ada.party == exchange(name).party == name
    assert BatchExchange(nobody, 2).party is nobody


async def test_wait_for_the_end_of_the_listen_streams_of_a_post_does_not_wait_for_its_calls() -> None:
    one, seen = exchange(), list[str]()
    call, stream = FakeRequest(), FakeRequest(METHODS["subscriptions/listen"])
    for request in (call, stream):
        one.hold(request, FakeScope("", []))
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await one.streams_idle()
            seen.append("streams")
            await one.idle()
            seen.append("all")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert seen == []
        one.release(stream)
        await wait_all_tasks_blocked()
        assert seen == ["streams"]
        one.release(call)
    assert seen == ["streams", "all"]


def test_response_is_put_into_the_outbox_of_the_http_exchange_that_received_the_request() -> None:
    one, owner = exchange(), Owner()
    one.reply(b"1\n")
    one.reply(None)
    one.reply(b"2\n", owner)
    one.reply_at_once(b"3\n")
    one.reply_at_once(None)
    one.outbox.withdraw(owner)
    assert sent(one) == b"1\n3\n"


def test_responses_to_a_batch_are_sent_together_after_the_last_response() -> None:
    one = exchange()
    batch = BatchExchange(one, 3)
    batch.reply(b'{"id":1}\n')
    batch.reply_at_once(b'{"id":2}\n')
    assert sent(one) == b""
    batch.reply(b'{"id":3}\n')
    assert sent(one) == b'[{"id":1},{"id":2},{"id":3}]\n'


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_batch_response_omits_requests_without_a_response(silent: int) -> None:
    one = exchange()
    batch = BatchExchange(one, 3)
    for number in range(3):
        assert sent(one) == b""
        batch.reply(None if number == silent else b"{}\n")
    assert sent(one) == b"[{},{}]\n"


def test_batch_of_messages_that_need_no_response_is_not_answered() -> None:
    one = exchange()
    batch = BatchExchange(one, 2)
    batch.reply(None)
    batch.reply(None)
    assert sent(one) == b""


def test_requests_of_a_batch_are_cancelled_when_their_connection_closes() -> None:
    one, ended, request = exchange(), list[tuple[str, CancelCause, str | None]](), FakeRequest()
    batch: Any = BatchExchange(one, 1)
    batch.hold(request, FakeScope("a", ended))
    assert one.find(request) is batch.find(request) is not None
    assert batch.ending is one.ending
    one.cancel_all(CancelCause.DISCONNECT, "gone")
    assert ended == [("a", CancelCause.DISCONNECT, "gone")]
    batch.release(request)
    assert one.find(request) is None
