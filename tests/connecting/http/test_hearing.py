"""Refused and broken GET streams of a legacy server (2025-11-25 transports)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, error, legacy, serving, text
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import HTTPError, open_http
from trio_mcp.concurrency.time_limits import growing_delay
from trio_mcp.connecting.http import opening, responses


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "growing_delay", partial(growing_delay, first=0.001))
    monkeypatch.setattr(opening, "growing_delay", partial(growing_delay, first=0.001))


class Heard:
    """A legacy server whose GETs are answered by ``gets``, one after another; the last one answers all further ones. A
    request in another session than the last is answered with 404."""

    def __init__(self, *gets: int | str, **capabilities: Any) -> None:
        self.gets = list(gets)
        self.capabilities = capabilities or {"tools": {"listChanged": True}}
        self.sessions = 0
        self.known: str | None = None
        self.refused_openings = 0

    async def __call__(self, got: Got, answer: Answer) -> None:
        if got.name == "initialize":
            if self.refused_openings:
                self.refused_openings -= 1
                await answer.whole(503)
                return
            self.sessions += 1
            self.known = f"s-{self.sessions}"
            await legacy(self._call, self.known, **self.capabilities)(got, answer)
        elif got.headers.get("mcp-session-id") != self.known:
            await answer.whole(404)
        elif got.name == "GET":
            get = self.gets.pop(0) if len(self.gets) > 1 else self.gets[0]
            await self._hear(get, got, answer)
        else:
            await legacy(self._call, self.known)(got, answer)

    async def _hear(self, get: int | str, got: Got, answer: Answer) -> None:
        if isinstance(get, int):
            if get == 404:
                self.known = None
            await answer.whole(get)
            return
        await answer.open()
        await answer.event("", id="e-1")
        if get == "cut":
            await answer.cut()
        else:
            await answer.gone()

    async def _call(self, got: Got, answer: Answer) -> None:
        await answer.json(text(got))


@pytest.fixture
def told() -> list[str]:
    return []


async def until_told(told: list[str], count: int) -> None:
    with trio.fail_after(PATIENCE):
        while len(told) < count:  # noqa: ASYNC110 - the callback is plain
            await trio.sleep(0.001)


async def test_client_opens_a_new_session_if_its_event_stream_gets_status_404(
    told: list[str],
) -> None:
    handler = Heard("cut", 404, "open")
    async with serving(handler) as server, open_http(server.url, era="legacy", on_list_changed=told.append) as client:
        await server.until("initialize", 2)
        await until_told(told, 1)
        assert (await client.call_tool("any")).text == "done"
    assert told == ["tools"]
    assert handler.sessions == 2


async def test_client_opens_a_new_session_if_its_first_event_stream_gets_status_404(told: list[str]) -> None:
    handler = Heard(404, "open")
    async with serving(handler) as server, open_http(server.url, era="legacy", on_list_changed=told.append):
        await server.until("initialize", 2)
        await until_told(told, 1)
    assert server.named("ping")


async def test_client_keeps_its_session_if_a_server_answers_404_because_it_has_no_event_streams() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "GET":
            await answer.whole(404)
        elif got.name == "ping":
            await answer.json(error(got, -32601), 404)
        elif got.name == "tools/call":
            await server.until("ping")
            await answer.json(text(got))
        else:
            await legacy(handler)(got, answer)

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
        await wait_all_tasks_blocked(0.01)
        assert [server.names.count(name) for name in ("initialize", "GET", "ping")] == [1, 1, 1]


async def test_client_restarts_the_event_stream_and_reports_changes_after_status_400_for_last_event_id(
    told: list[str],
) -> None:
    handler = Heard("cut", 400, "open", tools={"listChanged": True}, prompts={"listChanged": True}, resources={})
    async with serving(handler) as server, open_http(server.url, era="legacy", on_list_changed=told.append):
        await server.until("GET", 3)
        await until_told(told, 2)
    cursors = [got.headers.get("last-event-id") for got in server.named("GET")]
    assert cursors == [None, "e-1", None]
    assert told == ["tools", "prompts"]
    assert handler.sessions == 1


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_client_retries_a_temporarily_refused_event_stream_with_the_same_event_id(
    status: int, told: list[str]
) -> None:
    handler = Heard("cut", status, status, "open")
    async with serving(handler) as server, open_http(server.url, era="legacy", on_list_changed=told.append):
        await server.until("GET", 4)
    cursors = [got.headers.get("last-event-id") for got in server.named("GET")]
    assert cursors == [None, "e-1", "e-1", "e-1"]
    assert not told


async def test_client_retries_its_first_event_stream_after_status_409() -> None:
    handler = Heard(409, 409, "open")
    async with serving(handler) as server, open_http(server.url, era="legacy"):
        await server.until("GET", 3)


async def test_idle_client_opens_a_new_session_even_if_the_server_first_refuses_a_new_session(
    told: list[str],
) -> None:
    handler = Heard("cut", 404, "open")
    handler.refused_openings = 0

    async def down(got: Got, answer: Answer) -> None:
        if got.name == "GET" and len(handler.gets) == 2:
            handler.refused_openings = 2
        await handler(got, answer)

    async with serving(down) as server, open_http(server.url, era="legacy", on_list_changed=told.append):
        await server.until("initialize", 4)
        await until_told(told, 1)
    assert handler.sessions == 2


async def test_call_fails_if_resuming_its_stream_gets_404_but_the_next_call_succeeds() -> None:
    handler = Heard(405)

    async def then(got: Got, answer: Answer) -> None:
        if got.name == "tools/call" and len(server.named("tools/call")) == 1:
            await answer.open()
            await answer.event("", id="e-1", retry=1)
            await answer.end()
            handler.known = None
        else:
            await handler(got, answer)

    async with serving(then) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("any")
        assert caught.value.status == 404
        assert (await client.call_tool("any")).text == "done"
    assert server.names.count("tools/call") == 2
