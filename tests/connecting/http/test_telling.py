"""Answers and notifications of a client that the server refuses or doesn't acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, Handler, ScriptedHttp, legacy, serving, text
from tests.patience import PATIENCE

from trio_mcp import HTTPError, Limits, MCPError, open_http
from trio_mcp.auth import AuthorizationError
from trio_mcp.concurrency.time_limits import growing_delay
from trio_mcp.connecting.http import posted_request, transport
from trio_mcp.connecting.http.outgoing import OutboundFrame, Session, SessionQuestion, SessionQuestions
from trio_mcp.connecting.http.transport import OneWayPosts

CANCELLED = "notifications/cancelled"


def question(request_id: Any = "q") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "roots/list"}


class Asking:
    """A legacy server whose tool asks, and is answered by ``refusals``, one after another, and then by 202."""

    def __init__(self, *refusals: Handler, **capabilities: Any) -> None:
        self.refusals = list(refusals)
        self.replies: list[Any] = []
        self.told = trio.Event()
        self.stream: Answer | None = None
        self.handler = legacy(self._then)

    async def _then(self, got: Got, answer: Answer) -> None:
        if got.name == "reply":
            self.replies.append(got.message)
            if self.refusals:
                await self.refusals.pop(0)(got, answer)
            else:
                await answer.whole(202)
                self.told.set()
            return
        self.stream = answer
        await answer.open()
        await answer.event(question())
        await self.told.wait()
        await answer.event(text(got))
        await answer.end()


async def too_large(got: Got, answer: Answer) -> None:
    await answer.whole(413, b"<html><body>413 Request Entity Too Large</body></html>", content_type="text/html")


async def unavailable(got: Got, answer: Answer) -> None:
    await answer.whole(503)


async def cut(got: Got, answer: Answer) -> None:
    await answer.cut()


async def never(got: Got, answer: Answer) -> None:
    await answer.gone()


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "growing_delay", partial(growing_delay, first=0.001))


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize(
    "refusals",
    [[too_large], [unavailable], [cut], [too_large, unavailable, cut]],
    ids=["413", "503", "reset", "all"],
)
async def test_client_sends_an_error_if_its_roots_answer_cannot_be_delivered(refusals: list[Handler]) -> None:
    asking = Asking(*refusals)
    async with (
        serving(asking.handler) as server,
        open_http(server.url, era="legacy", roots=[]) as client,
    ):
        with trio.fail_after(PATIENCE):
            assert (await client.call_tool("any")).text == "done"
    first, *others = asking.replies
    assert first == {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    assert len(others) == len(refusals)
    for other in others:
        assert other["id"] == "q"
        assert other["error"]["code"] == -32603
        assert "could not be delivered" in other["error"]["message"]


@pytest.mark.usefixtures("in_a_hurry")
async def test_client_sends_an_error_if_the_server_does_not_acknowledge_the_roots_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_ANSWER_TIMEOUT", 0.3)
    asking = Asking(never)
    async with serving(asking.handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        with trio.fail_after(PATIENCE):
            assert (await client.call_tool("any")).text == "done"
    assert {"result", "error"} <= set().union(*asking.replies)


@pytest.mark.usefixtures("in_a_hurry")
async def test_error_sent_for_an_undeliverable_answer_contains_the_http_status() -> None:
    asking = Asking(too_large)
    async with serving(asking.handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        await client.call_tool("any")
    assert asking.replies[1]["error"]["message"].endswith("(HTTP status 413)")


@pytest.mark.usefixtures("in_a_hurry")
async def test_call_fails_if_the_client_can_deliver_neither_the_roots_answer_nor_an_error_in_place_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_UNTOLD", 0.05)
    asking = Asking(*[unavailable] * 1000)
    async with serving(asking.handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        with trio.fail_after(PATIENCE):
            with pytest.raises(HTTPError, match="answer to the server's request could not be delivered") as caught:
                await client.call_tool("any")
            assert caught.value.status == 503
            cancel = await server.until(CANCELLED)
    assert cancel.message["params"]["requestId"] == server.named("tools/call")[0].message["id"]


class Refused(OneWayPosts):
    """Whatever is told is refused, at the noted times; ``then`` is called each time."""

    def __init__(self, then: Callable[[int], None] = lambda _: None, error: MCPError = HTTPError(503, "no")) -> None:  # noqa: B008
        self.times: list[float] = []
        self.then = then
        self.error = error

    async def send(self, session: Session | None, message: OutboundFrame) -> None:
        self.times.append(trio.current_time())
        self.then(len(self.times))
        raise self.error


async def test_client_retries_to_send_the_error_for_an_undeliverable_answer_for_a_minute(
    autojump_clock: object,
) -> None:
    question, refused = SessionQuestion(Session("s", "2025-11-25"), 1), Refused()
    failure = await refused.send_failure(question, "q", HTTPError(413, "first"))
    assert failure is refused.error
    began, *times = refused.times
    delays = [later - earlier for earlier, later in pairwise(refused.times)]
    assert all(delay >= longest / 2 for delay, longest in zip(delays, (1, 2, 4, 8, 16, 30), strict=False))
    assert 5 <= len(delays) <= 7
    assert trio.current_time() - began == 60
    assert times


@pytest.mark.parametrize("over", ["withdrawn", "asked again", "session"])
async def test_client_stops_resending_an_error_response_when_the_server_request_is_cancelled_or_replaced(
    over: str, autojump_clock: object
) -> None:
    questions, session = SessionQuestions(), Session("s", "2025-11-25")
    questions.add("q", session, 1)
    question = questions.find("q")
    assert question is not None

    def then(attempt: int) -> None:
        match attempt, over:
            case 2, "withdrawn":
                questions.withdraw("q")
            case 2, "asked again":
                questions.add("q", session, 2)
            case 2, "session":
                session.over.set()
            case _:
                pass

    refused = Refused(then)
    assert await refused.send_failure(question, "q", HTTPError(413, "first")) is None
    assert len(refused.times) == 2


async def test_client_sends_no_error_for_a_reply_that_failed_because_the_user_denied_authorization(
    autojump_clock: object,
) -> None:
    question, refused = SessionQuestion(Session("s", "2025-11-25"), 1), Refused()
    denied = AuthorizationError("the user has declined")
    assert await refused.send_failure(question, "q", denied) is denied
    assert refused.times == []


# Servers that do not acknowledge answers and notifications


def silent_about(*names: str, then: Handler) -> Handler:
    async def handler(got: Got, answer: Answer) -> None:
        await (never if got.name in names else then)(got, answer)

    return handler


async def called_and_left(server: ScriptedHttp, client: Any, count: int) -> None:
    """Make ``count`` calls, and leave them all when they have come."""
    before = server.names.count("tools/call")
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(client.call_tool, "hang")
        await server.until("tools/call", before + count)
        nursery.cancel_scope.cancel()


async def asking_or_hanging(got: Got, answer: Answer) -> None:
    """Hang in one tool, and ask in the other."""
    if got.name in ("reply", "notifications/roots/list_changed"):
        await answer.whole(202)
    elif got.message["params"]["name"] == "hang":
        await answer.gone()
    else:
        await answer.open()
        await answer.event(question())
        await answer.event(text(got))
        await answer.end()


async def test_cancel_notifications_without_a_response_do_not_delay_other_messages_of_the_client() -> None:
    handler = silent_about(CANCELLED, then=legacy(asking_or_hanging))
    async with serving(handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        await called_and_left(server, client, 40)
        await server.until(CANCELLED, 40)
        with trio.fail_after(PATIENCE):
            await client.call_tool("ask")
            await server.until("reply")
            client._connection.notify("notifications/roots/list_changed")
            await server.until("notifications/roots/list_changed")


async def test_cancel_notifications_without_a_response_delay_further_cancels_only_until_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_CANCEL_TIMEOUT", 0.5)
    monkeypatch.setattr(posted_request, "_FAREWELL", 0.001)
    handler = silent_about(CANCELLED, then=legacy(asking_or_hanging))
    limits = Limits(max_in_flight=1)
    async with serving(handler) as server, open_http(server.url, era="legacy", limits=limits) as client:
        with trio.fail_after(PATIENCE):
            for count in range(1, 4):
                await called_and_left(server, client, 1)
                await server.until(CANCELLED, count)


async def test_client_replies_without_an_http_response_do_not_delay_cancel_notifications() -> None:
    handler = silent_about("reply", then=legacy(asking_or_hanging))
    async with serving(handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        for _ in range(40):
            await client.call_tool("ask")
        await server.until("reply", 32)
        await called_and_left(server, client, 1)
        await server.until(CANCELLED)


async def test_tasks_cancel_request_without_a_response_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CANCEL_OF_TASK_TIMEOUT", 0.05)
    handler = silent_about("tasks/cancel", then=legacy(asking_or_hanging, tasks={"cancel": {}}))
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        with trio.fail_after(PATIENCE), pytest.raises(HTTPError, match=r"did not answer within 0\.05 s"):
            await client._connection.request("tasks/cancel", {"taskId": "t"}, client.revision)
        assert server.names.count("tasks/cancel") <= 1
