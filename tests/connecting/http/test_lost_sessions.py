"""Legacy sessions that a server forgets, refuses or doesn't open: each is bounded, and calls fail with the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from tests.connecting.http.scripted import Answer, Got, Handler, error, legacy, serving, text
from trio.testing import MockClock

from trio_mcp import HTTPError, MCPError, open_http
from trio_mcp.connecting.http import endpoint, transport

INITIALIZED = "notifications/initialized"


async def call(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


def rpc(code: int, message: str, request_id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


async def typescript(got: Got, answer: Answer) -> None:
    await answer.json(rpc(-32000, "Bad Request: No valid session ID provided"), 400)


async def in_words(got: Got, answer: Answer) -> None:
    await answer.whole(400, b"Invalid session ID")


async def untyped(got: Got, answer: Answer) -> None:
    await answer.whole(400, b'{"error": "unknown session"}')


async def not_initialized(got: Got, answer: Answer) -> None:
    await answer.json(error(got, -32000, "Bad Request: Server not initialized"), 400)


async def gone(got: Got, answer: Answer) -> None:
    await answer.whole(410)


async def unknown_in_401(got: Got, answer: Answer) -> None:
    await answer.json(rpc(-32001, "Session not found"), 403)


async def unknown_in_200(got: Got, answer: Answer) -> None:
    await answer.json(error(got, -32001, "Session expired"))


async def unknown_on_a_stream(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event(error(got, -32001, "Session not found"))
    await answer.end()


async def unknown(got: Got, answer: Answer) -> None:
    await answer.whole(404)


REFUSALS = [
    *(typescript, in_words, untyped, not_initialized, gone, unknown_in_401, unknown_in_200, unknown_on_a_stream),
    unknown,
]
ODD_REFUSALS = REFUSALS[:-1]


class Restarted:
    """A server whose sessions are forgotten by `restart`, and refused as ``refuse`` does from then on."""

    def __init__(self, refuse: Handler) -> None:
        self.refuse = refuse
        self.sessions = 0
        self.known = ""

    def restart(self) -> None:
        self.known = ""

    async def __call__(self, got: Got, answer: Answer) -> None:
        if got.name == "initialize":
            self.sessions += 1
            self.known = f"s-{self.sessions}"
        elif got.name == "tools/call" and got.headers["mcp-session-id"] != self.known:
            await self.refuse(got, answer)
            return
        await legacy(call, self.known)(got, answer)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent before the answer to ``notifications/initialized``, however slow this machine is."""
    monkeypatch.setattr(transport, "_SLOW", math.inf)


@pytest.mark.parametrize("refuse", REFUSALS)
async def test_http_error_for_an_unknown_session_makes_the_client_open_a_new_session(
    mock_clock: MockClock, patient: None, refuse: Handler
) -> None:
    mock_clock.rate = 20
    handler = Restarted(refuse)
    async with serving(handler) as server, open_http(server.url) as client:
        for _ in range(2):
            assert (await client.call_tool("any")).text == "done"
            handler.restart()
            with pytest.raises(MCPError):
                await client.call_tool("any")
        assert (await client.call_tool("any")).text == "done"
    assert handler.sessions == 3


@pytest.mark.parametrize("refuse", ODD_REFUSALS)
async def test_repeated_http_error_for_an_unknown_session_opens_only_one_new_session(refuse: Handler) -> None:
    async with serving(legacy(refuse)) as server, open_http(server.url) as client:
        for _ in range(5):
            with pytest.raises(MCPError):
                await client.call_tool("any")
    assert server.names.count("initialize") == 2


async def test_client_opens_a_new_session_each_time_the_server_forgets_a_session_that_is_not_new(
    mock_clock: MockClock, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_clock.rate = 50
    monkeypatch.setattr(endpoint, "_YOUNG", 0.0)
    handler = Restarted(in_words)
    async with serving(handler) as server, open_http(server.url) as client:
        for session in (2, 3):
            handler.restart()
            with pytest.raises(HTTPError, match="Invalid session ID"):
                await client.call_tool("any")
            await server.until(INITIALIZED, session)
        assert (await client.call_tool("any")).text == "done"


@pytest.mark.parametrize("words", [b"", b"bad argument", b'{"error": "no such file"}'])
async def test_client_keeps_its_session_after_status_400_that_is_unrelated_to_the_session(words: bytes) -> None:
    async def refuse(got: Got, answer: Answer) -> None:
        await answer.whole(400, words)

    async with serving(legacy(refuse)) as server, open_http(server.url) as client:
        for _ in range(2):
            with pytest.raises(HTTPError):
                await client.call_tool("any")
    assert server.names.count("initialize") == 1


async def test_client_keeps_its_session_after_error_32001_that_is_unrelated_to_the_session() -> None:
    async def refuse(got: Got, answer: Answer) -> None:
        await answer.json(error(got, -32001, "Request timed out"))

    async with serving(legacy(refuse)) as server, open_http(server.url) as client:
        for _ in range(2):
            with pytest.raises(MCPError, match="timed out"):
                await client.call_tool("any")
    assert server.names.count("initialize") == 1


@pytest.mark.parametrize("refused", [INITIALIZED, "tools/call"])
async def test_call_raises_the_http_error_of_the_server_after_three_sessions_were_refused(
    mock_clock: MockClock, patient: None, refused: str
) -> None:
    mock_clock.rate = 50

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == refused:
            await answer.whole(404, b"what session?")
        else:
            await legacy(call)(got, answer)

    failures = list[str]()

    async def fail() -> None:
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("any")
        failures.append(str(caught.value))

    async with serving(handler) as server, open_http(server.url) as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(fail)
        assert len(failures) == 3
        if refused == INITIALIZED:
            assert set(failures) == {"the server answered with HTTP status 404 (Not Found): what session?"}
            assert server.names.count("initialize") == 3
            with trio.fail_after(60):
                await fail()
            assert server.names.count("initialize") == 4, "one more session for one more call"


async def test_client_uses_a_server_again_that_recovers_after_it_refused_three_sessions(
    mock_clock: MockClock, patient: None
) -> None:
    mock_clock.rate = 50
    is_down = True

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == INITIALIZED and is_down:
            await answer.whole(404)
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url) as client:
        with pytest.raises(HTTPError):
            await client.call_tool("any")
        is_down = False
        assert (await client.call_tool("any")).text == "done"


@pytest.fixture
def quick(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses before ``notifications/initialized`` is sent again."""
    for name, seconds in (("_FIRST_PAUSE", 0.001), ("_LONGEST_PAUSE", 0.002)):
        monkeypatch.setattr(transport, name, seconds)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("times", [1, 3])
async def test_client_repeats_an_initialized_notification_refused_by_a_busy_server_before_other_requests(
    quick: None, status: int, times: int
) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if len(server.named(INITIALIZED)) <= times and got.name not in ("initialize", "server/discover"):
            await answer.whole(status, retry_after="86400")
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names[2 : 3 + times] == [INITIALIZED] * (times + 1)


async def test_client_repeats_a_refused_initialized_notification_a_limited_number_of_times(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name == INITIALIZED:
            await answer.whole(429, b"slow down")
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names.count(INITIALIZED) == 6
    assert caplog.text.count("the server refused notifications/initialized") == 1


async def test_retry_of_the_initialized_notification_waits_for_the_retry_after_header(mock_clock: MockClock) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if server.names.count(INITIALIZED) == 1 and got.name == INITIALIZED:
            await answer.whole(503, retry_after="2")
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "any")
        await server.until(INITIALIZED)
        await trio.testing.wait_all_tasks_blocked(0.02)
        mock_clock.jump(1.9)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.names[-1] == INITIALIZED
        mock_clock.jump(0.2)
        await server.until("tools/call")
    assert server.names[2:4] == [INITIALIZED] * 2
