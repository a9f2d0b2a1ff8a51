"""A server as an ASGI application: alone, mounted, and behind a real ASGI server that runs on trio."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import hypercorn.trio
import pytest
import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount, Route
from tests.patience import PATIENCE
from tests.serving.http.raw import BASE, INITIALIZE, Answer, Connection, Endpoint, events_in, message, modern
from tests.serving.http.scenes import SAMPLING, Scene
from tests.serving.http.scenes import call as scene_call
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Cancellation, Limits, RequestContext, Server, http_app, open_http
from trio_mcp.jsonrpc.errors import UnreadableAnswer
from trio_mcp.types import HTTPApp

OPEN: dict[str, Any] = {"allowed_origins": ["https://app.example.com"], "allowed_hosts": ["127.0.0.1"]}
user: ContextVar[str] = ContextVar("user", default="nobody")


class Journal:
    """What handlers have seen."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.ended = trio.Event()
        self.cancellation: Cancellation | None = None
        self.steps: list[str] = []


@attrs.frozen
class Served:
    server: Server
    journal: Journal


@pytest.fixture
async def served() -> Served:
    journal = Journal()

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        journal.steps.append("up")
        yield
        journal.steps.append("down")

    server = Server("mounted", lifespan=lifespan)

    @server.tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @server.tool
    async def whoami(ctx: RequestContext) -> str:
        """Return what the request carries."""
        return f"{user.get()} {(ctx.headers or {}).get('x-who')}"

    @server.tool
    async def wait(ctx: RequestContext, speak: bool = False) -> str:
        """Wait for ever."""
        try:
            if speak:
                ctx.progress(1)
            journal.started.set()
            await trio.sleep_forever()
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()
        return "never"

    return Served(server, journal)


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}


# In memory


class Exchange:
    """One request to an ASGI application, by hand."""

    def __init__(self, app: Any, nursery: trio.Nursery, method: str, headers: list[tuple[bytes, bytes]], **more: Any):
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            **more,
        }
        self.bring, self._receive = trio.open_memory_channel[dict[str, Any]](100)
        self._sent, self._taken = trio.open_memory_channel[dict[str, Any]](0)
        self._is_left = False
        self.over = trio.Event()
        nursery.start_soon(self._run, app)

    async def _run(self, app: Any) -> None:
        await app(self.scope, self._receive.receive, self._send)
        self.over.set()
        await self._sent.aclose()

    async def send(self, body: bytes, *, more: bool = False) -> None:
        await self.bring.send({"type": "http.request", "body": body, "more_body": more})

    async def _send(self, event: dict[str, Any]) -> None:
        if not self._is_left:  # ASGI 3, Disconnect: later events go nowhere
            await self._sent.send(event)

    def stop_sending(self) -> None:
        self._is_left = True
        self._taken.close()

    async def leave(self) -> None:
        self._is_left = True
        await self.bring.send({"type": "http.disconnect"})

    async def start(self) -> Answer:
        event = await self._taken.receive()
        assert event["type"] == "http.response.start"
        return Answer(event["status"], {name.decode(): value.decode() for name, value in event["headers"]}, b"")

    async def piece(self) -> tuple[bytes, bool]:
        event = await self._taken.receive()
        assert event["type"] == "http.response.body"
        return event["body"], event.get("more_body", False)

    async def answer(self) -> Answer:
        answer = await self.start()
        more = True
        while more:
            data, more = await self.piece()
            answer.body += data
        await self.over.wait()
        return answer


Ask = Callable[..., Exchange]


def fields(headers: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None]


@asynccontextmanager
async def asking(server: Server, **options: Any) -> AsyncGenerator[Ask]:
    app = http_app(server, **{**OPEN, **options})
    async with app.lifespan(), trio.open_nursery() as nursery:
        yield lambda method="POST", headers=(), **more: Exchange(
            app, nursery, method, [*fields({"Host": "127.0.0.1"}), *headers], **more
        )
        nursery.cancel_scope.cancel(reason="the test is over")


@pytest.fixture
async def ask(served: Served) -> AsyncGenerator[Ask]:
    async with asking(served.server) as one:
        yield one


def good(headers: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [pair for pair in fields(headers) if pair[0] != b"host"]


async def posted(ask: Ask, method: str, params: dict[str, Any], **more: Any) -> Exchange:
    headers, body = modern(method, params)
    exchange = ask(headers=good(headers), **more)
    await exchange.send(json.dumps(body).encode())
    return exchange


async def test_asgi_app_answers_a_call_with_json(ask: Ask) -> None:
    answer = await (await posted(ask, *call("echo", text="hi"))).answer()
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.json["result"]["content"][0]["text"] == "hi"


async def test_asgi_app_accepts_a_body_in_any_number_of_pieces(ask: Ask) -> None:
    headers, body = modern(*call("echo", text="in pieces"))
    exchange = ask(headers=good(headers))
    for byte in json.dumps(body).encode():
        await exchange.send(bytes([byte]), more=True)
    await exchange.send(b"")
    assert (await exchange.answer()).json["result"]["content"][0]["text"] == "in pieces"


async def test_asgi_response_stream_is_sent_in_pieces_as_it_is_produced(ask: Ask, served: Served) -> None:
    exchange = await posted(ask, *call("wait", speak=True))
    start = await exchange.start()
    assert start.headers["content-type"] == "text/event-stream"
    assert "content-length" not in start.headers
    piece, more = await exchange.piece()
    assert more
    assert events_in(piece)[0].data["method"] == "notifications/progress"
    await exchange.leave()
    await exchange.over.wait()


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
async def test_asgi_client_that_disconnects_cancels_its_handler(ask: Ask, served: Served, speak: bool) -> None:
    exchange = await posted(ask, *call("wait", speak=speak))
    if speak:
        await exchange.start()
        await exchange.piece()
    await served.journal.started.wait()
    await exchange.leave()
    await served.journal.ended.wait()
    assert served.journal.cancellation is not None
    assert served.journal.cancellation.cause is CancelCause.DISCONNECT
    await exchange.over.wait()


async def test_asgi_client_that_disconnects_before_the_handler_starts_cancels_its_request(
    ask: Ask, served: Served
) -> None:
    exchange = await posted(ask, *call("wait"))
    await exchange.leave()
    await exchange.over.wait()
    with trio.fail_after(PATIENCE):
        while served.server.statistics().in_flight:
            await trio.lowlevel.checkpoint()
    assert not served.journal.started.is_set() or served.journal.ended.is_set()


async def test_asgi_client_that_disconnects_during_the_body_gets_no_response(ask: Ask) -> None:
    headers, _ = modern(*call("echo", text="hi"))
    exchange = ask(headers=good(headers))
    await exchange.send(b"{", more=True)
    await exchange.leave()
    await exchange.over.wait()


@pytest.mark.parametrize("refused_for", ["its length", "its time"])
async def test_s2c_09_sampling_request_fails_if_the_body_of_its_answer_is_rejected(
    autojump_clock: MockClock, refused_for: str
) -> None:
    scene = Scene()
    async with asking(scene.server, limits=Limits(max_message_bytes=20_000)) as ask:

        async def posted(body: dict[str, Any], session: dict[str, str]) -> Exchange:
            exchange = ask(headers=good({**BASE, **session}))
            await exchange.send(json.dumps(body).encode())
            return exchange

        params = {**INITIALIZE["params"], "capabilities": SAMPLING}
        opened = await (await posted({**INITIALIZE, "params": params}, {})).answer()
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        post = await posted(scene_call("ask", name="asker"), session)
        await post.start()
        told = b""
        while not (found := [event.data for event in events_in(told) if event.data is not None]):
            told += (await post.piece())[0]
        too_long = refused_for == "its length"
        body = json.dumps({"jsonrpc": "2.0", "id": found[0]["id"], "result": "x" * (20_000 * too_long)}).encode()
        answer = ask(headers=good({**BASE, **session, "Content-Length": str(len(body))}))
        await answer.send(body if too_long else body[:-1], more=not too_long)
        assert (await answer.answer()).status == (413 if too_long else 408)
        await scene["asker"].ended.wait()
        assert isinstance(scene["asker"].failure, UnreadableAnswer)
        await post.leave()
        await post.over.wait()


async def test_htt_22_unfinished_asgi_bodies_of_one_caller_leave_memory_for_a_later_request(
    served: Served,
) -> None:
    limits = Limits(max_unread_bytes=100_000, max_message_bytes=40_000)
    async with asking(served.server, limits=limits) as ask:
        length = str(40_000)
        sent = [ask(headers=good({**BASE, "Content-Length": length})) for _ in range(3)]
        for exchange in sent:
            await exchange.send(bytes(20_000), more=True)
            await wait_all_tasks_blocked()
        await sent[2].send(b"")
        assert (await sent[2].answer()).status == 503
        await sent[0].leave()
        await sent[0].over.wait()
        again = await posted(ask, *call("echo", text="x" * 20_000))
        assert (await again.answer()).status == 200
        await sent[1].leave()
        await sent[1].over.wait()


async def test_asgi_handler_is_cancelled_if_the_asgi_server_cancels_the_request(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with app.lifespan():
        async with trio.open_nursery() as nursery:
            headers, body = modern(*call("wait"))
            exchange = Exchange(app, nursery, "POST", fields(headers))
            await exchange.send(json.dumps(body).encode())
            await served.journal.started.wait()
            nursery.cancel_scope.cancel(reason="the ASGI server gives up")
        await served.journal.ended.wait()


async def test_asgi_handler_is_cancelled_if_send_raises_after_a_disconnect(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with app.lifespan(), trio.open_nursery() as nursery:
        headers, body = modern(*call("wait", speak=True))

        async def send(_: Any) -> None:
            raise OSError("the client is gone")

        events = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Any:
            return events.pop() if events else await trio.sleep_forever()

        scope = {**Exchange(app, nursery, "POST", fields(headers)).scope}
        await app(scope, receive, send)
        await served.journal.ended.wait()
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_asgi_client_that_stops_reading_its_response_is_treated_as_disconnected(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    async with asking(served.server) as ask:
        await posted(ask, *call("wait", speak=True))  # nobody takes what is sent
        await served.journal.ended.wait()
    assert served.journal.cancellation is not None
    assert served.journal.cancellation.cause is CancelCause.DISCONNECT


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ([(b"content-length", b"12x")], 400, "Content-Length"),
        ([(b"content-length", b"5"), (b"content-length", b"5")], 400, "must not be repeated"),
        ([(b"content-length", b"5"), (b"transfer-encoding", b"chunked")], 400, "Transfer-Encoding"),
        ([(b"content-length", b"999999999")], 413, "bytes"),
        ([(b"content-length", b"9" * 30)], 400, "Content-Length"),
        ([(b"host", b"127.0.0.1")], 400, "must not be repeated"),
        ([(b"x-long", b"x" * 20000)], 431, "bytes"),
        ([(b"x-many", b"x")] * 101, 431, "headers"),
        ([(b"x-control", b"a\x01b")], 400, "control character"),
    ],
)
async def test_asgi_app_rejects_malformed_requests_that_the_asgi_server_passes_on(
    ask: Ask, headers: list[tuple[bytes, bytes]], status: int, words: str
) -> None:
    exchange = ask(headers=[*good(BASE), *headers])
    await exchange.send(b"")
    answer = await exchange.answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert words in answer.json["error"]["message"]


async def test_asgi_request_with_a_missing_or_disallowed_host_is_rejected(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with app.lifespan(), trio.open_nursery() as nursery:
        for host, status in ((None, 400), ("evil.example.com", 403)):
            exchange = Exchange(app, nursery, "POST", fields({**BASE, "Host": host}))
            await exchange.send(b"")
            assert (await exchange.answer()).status == status


async def test_asgi_body_without_content_length_beyond_the_limit_gets_status_413(
    served: Served,
) -> None:
    async with asking(served.server, limits=Limits(max_message_bytes=100)) as ask:
        exchange = ask(headers=good(BASE))
        await exchange.send(b"x" * 101, more=True)
        assert (await exchange.start()).status == 413
        body, more = await exchange.piece()
        assert "100 bytes" in json.loads(body)["error"]["message"]
        assert more, "the connection stays open while the client sends"
        await exchange.send(b"the rest")
        assert await exchange.piece() == (b"", False)


async def test_asgi_body_that_does_not_arrive_within_body_timeout_gets_status_408(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    async with asking(served.server) as ask:
        exchange = ask(headers=good(BASE))
        await exchange.send(b"{", more=True)
        assert (await exchange.answer()).status == 408


async def test_asgi_app_answers_a_request_with_rejected_headers_before_it_reads_the_body(ask: Ask) -> None:
    exchange = ask(headers=[(b"content-type", b"text/plain")])
    await exchange.send(b"x", more=True)
    assert (await exchange.start()).status == 415


async def test_asgi_body_of_a_rejected_request_is_read_completely(ask: Ask) -> None:
    exchange = ask(headers=[(b"content-type", b"text/plain"), (b"content-length", b"4000001")])
    for _ in range(40):
        await exchange.send(b"x" * 100_000, more=True)
    assert (await exchange.start()).status == 415
    assert (await exchange.piece())[1]
    await trio.testing.wait_all_tasks_blocked()
    assert exchange.bring.statistics().current_buffer_used == 0
    await exchange.send(b"x")
    assert await exchange.piece() == (b"", False)


async def test_asgi_preflight_of_an_allowed_origin_gets_status_204(ask: Ask) -> None:
    exchange = ask("OPTIONS", [(b"origin", b"https://app.example.com")])
    await exchange.send(b"")
    answer = await exchange.answer()
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"


@pytest.mark.parametrize(
    ("root_path", "path", "found"),
    [
        ("", "/mcp", True),
        ("", "/mcp/", True),
        ("/api", "/api/mcp", True),
        ("/api", "/api/mcp/", True),
        ("/api/", "/api/mcp", True),
        ("/api", "/mcp", True),
        ("/mcp", "/mcp/mcp", True),
        ("/mcp", "/mcpmcp", False),
        ("/api", "/api", False),
        ("", "/other", False),
    ],
)
async def test_asgi_app_reads_the_path_relative_to_its_mount_point(
    ask: Ask, root_path: str, path: str, found: bool
) -> None:
    exchange = await posted(ask, *call("echo", text="hi"), root_path=root_path, path=path)
    assert (await exchange.answer()).status == (200 if found else 404)


async def test_handler_does_not_inherit_context_variables_of_the_asgi_request_task(served: Served) -> None:
    app = http_app(served.server, **OPEN)

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        user.set("somebody")
        await app(scope, receive, send)

    async with app.lifespan(), trio.open_nursery() as nursery:
        headers, body = modern(*call("whoami"))
        exchange = Exchange(framework, nursery, "POST", fields({**headers, "X-Who": "me"}))
        await exchange.send(json.dumps(body).encode())
        assert (await exchange.answer()).json["result"]["content"][0]["text"] == "nobody me"


async def test_asgi_app_closes_a_websocket_immediately(served: Served) -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    await http_app(served.server, **OPEN)({"type": "websocket"}, trio.sleep_forever, send)
    assert sent == [{"type": "websocket.close"}]


async def test_http_app_without_allowed_origins_and_hosts_raises(served: Served) -> None:
    for given in ({}, {"allowed_origins": []}, {"allowed_hosts": ["mcp.example.com"]}):
        with pytest.raises(ValueError, match="http_app needs allowed_origins"):
            http_app(served.server, **given)


async def test_stateless_asgi_app_creates_no_session(served: Served) -> None:
    async with asking(served.server, stateless=True) as ask:
        exchange = ask(headers=good(BASE))
        await exchange.send(json.dumps(INITIALIZE).encode())
        answer = await exchange.answer()
        assert answer.status == 200
        assert "mcp-session-id" not in answer.headers
        exchange = ask("GET", [(b"accept", b"text/event-stream")])
        await exchange.send(b"")
        assert (await exchange.answer()).status == 405


# The lifespan


class Lifespan:
    """The lifespan of an ASGI server, by hand."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.events, self._receive = trio.open_memory_channel[dict[str, Any]](10)
        self._sent, self.told = trio.open_memory_channel[dict[str, Any]](10)

    async def run(self) -> None:
        await self._app({"type": "lifespan"}, self._receive.receive, self._sent.send)

    async def say(self, event: str) -> dict[str, Any]:
        await self.events.send({"type": event})
        return await self.told.receive()


async def test_standalone_asgi_app_runs_the_server_lifespan_in_the_asgi_lifespan(
    served: Served, nursery: trio.Nursery
) -> None:
    lifespan = Lifespan(http_app(served.server, **OPEN))
    nursery.start_soon(lifespan.run)
    assert await lifespan.say("lifespan.startup") == {"type": "lifespan.startup.complete"}
    assert served.journal.steps == ["up"]
    assert await lifespan.say("lifespan.shutdown") == {"type": "lifespan.shutdown.complete"}
    assert served.journal.steps == ["up", "down"]


async def test_exception_in_the_server_lifespan_is_reported_to_the_asgi_server(nursery: trio.Nursery) -> None:
    @asynccontextmanager
    async def fails(_: Server) -> AsyncGenerator[None]:
        raise LookupError("no database")
        yield

    lifespan = Lifespan(http_app(Server("fails", lifespan=fails), **OPEN))

    async def run() -> None:
        with pytest.raises(LookupError):
            await lifespan.run()

    nursery.start_soon(run)
    told = await lifespan.say("lifespan.startup")
    assert told == {"type": "lifespan.startup.failed", "message": "no database"}


async def test_asgi_lifespan_raises_if_it_is_entered_twice_concurrently(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with app.lifespan():
        with pytest.raises(RuntimeError, match="enter its lifespan once"):
            async with app.lifespan():
                pass
    async with app.lifespan():
        assert served.journal.steps == ["up", "down", "up"]


async def test_asgi_request_without_a_lifespan_gets_status_500_with_instructions(
    served: Served, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = Exchange(http_app(served.server, **OPEN), nursery, "POST", fields(BASE))
    answer = await exchange.answer()
    assert answer.status == 500
    assert b"lifespan=mcp.lifespan" in answer.body
    assert "lifespan=mcp.lifespan" in caplog.text


async def test_asgi_app_ends_streams_without_waiting_for_clients_when_its_lifespan_ends(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    app = http_app(served.server, **OPEN)
    async with trio.open_nursery() as nursery:
        async with app.lifespan():
            headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            read, unread = (Exchange(app, nursery, "POST", fields(headers)) for _ in range(2))
            for exchange in (read, unread):
                await exchange.send(json.dumps(body).encode())
                await exchange.start()
            await read.piece()
            rest: list[bytes] = []

            async def read_on() -> None:
                more = True
                while more:
                    data, more = await read.piece()
                    rest.append(data)

            nursery.start_soon(read_on)
        assert trio.current_time() < 5
        await read.over.wait()
        await unread.over.wait()
    assert events_in(b"".join(rest))[-1].data["result"]["resultType"] == "complete"


async def test_asgi_app_cancels_all_running_requests_if_its_lifespan_is_cancelled(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with app.lifespan():
                headers, body = modern(*call("wait"))
                exchange = Exchange(app, nursery, "POST", fields(headers))
                await exchange.send(json.dumps(body).encode())
                await served.journal.started.wait()
                scope.cancel(reason="the application is cancelled")
        assert served.journal.cancellation is not None
        assert served.journal.cancellation.cause is CancelCause.PARENT
        exchange.stop_sending()
        await exchange.over.wait()


async def test_asgi_app_lets_running_requests_finish_when_its_lifespan_ends(served: Served) -> None:
    release = trio.Event()

    @served.server.tool
    async def slow() -> str:
        """Wait for the test."""
        served.journal.started.set()
        await release.wait()
        return "done"

    app = http_app(served.server, **OPEN)
    async with trio.open_nursery() as nursery, app.lifespan():
        headers, body = modern(*call("slow"))
        exchange = Exchange(app, nursery, "POST", fields(headers))
        await exchange.send(json.dumps(body).encode())
        await served.journal.started.wait()

        async def release_soon() -> None:
            await trio.testing.wait_all_tasks_blocked()
            release.set()

        nursery.start_soon(release_soon)
        answers: list[Answer] = []

        async def take() -> None:
            answers.append(await exchange.answer())

        nursery.start_soon(take)
    assert answers[0].json["result"]["content"][0]["text"] == "done"


# Behind hypercorn, mounted in Starlette


class Hypercorn(Endpoint):
    """An application behind hypercorn."""

    def __init__(self, port: int, nursery: trio.Nursery, stop: trio.Event, over: trio.Event) -> None:
        super().__init__(port, nursery)
        self.stop = stop
        self.over = over


@asynccontextmanager
async def behind_hypercorn(app: Any) -> AsyncGenerator[Hypercorn]:
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.graceful_timeout = 0.2
    logger = logging.getLogger("hypercorn.test")
    config.errorlog = logger
    stop, over = trio.Event(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
        await hypercorn.trio.serve(app, config, shutdown_trigger=stop.wait, task_status=task_status)
        over.set()

    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve)
        yield Hypercorn(int(url.rpartition(":")[2]), nursery, stop, over)
        stop.set()
        await over.wait()
        nursery.cancel_scope.cancel(reason="the test is over")


def mounted(app: HTTPApp, prefix: str = "/api", **options: Any) -> Starlette:
    return Starlette(routes=[Mount(prefix, app)], lifespan=app.lifespan, **options)


@pytest.fixture
async def hypercorned(served: Served) -> AsyncGenerator[Hypercorn]:
    async with behind_hypercorn(mounted(http_app(served.server, **OPEN))) as one:
        yield one


async def posting(connection: Connection, method: str, params: dict[str, Any], path: str = "/api/mcp") -> None:
    headers, body = modern(method, params)
    await connection.send("POST", {**headers}, body, path)


@pytest.mark.parametrize("path", ["/api/mcp", "/api/mcp/"])
async def test_mounted_asgi_app_answers_with_and_without_a_trailing_slash(hypercorned: Hypercorn, path: str) -> None:
    connection = await hypercorned.connect()
    for text in "ab":
        await posting(connection, *call("echo", text=text), path=path)
        assert (await connection.answer()).json["result"]["content"][0]["text"] == text
    await connection.aclose()


@pytest.mark.parametrize("prefix", ["", "/", "/a/{tenant}"])
async def test_asgi_app_can_be_mounted_under_any_prefix(served: Served, prefix: str) -> None:
    path = prefix.rstrip("/").format(tenant="b") + "/mcp"
    async with behind_hypercorn(mounted(http_app(served.server, **OPEN), prefix)) as endpoint:
        connection = await endpoint.connect()
        await posting(connection, *call("echo", text="hi"), path=path)
        assert (await connection.answer()).status == 200
        await connection.aclose()


async def test_asgi_app_can_be_the_endpoint_of_a_framework_route(served: Served) -> None:
    app = http_app(served.server, **OPEN, path="/tools/mcp")
    async with behind_hypercorn(Starlette(routes=[Route("/tools/mcp", app)], lifespan=app.lifespan)) as endpoint:
        connection = await endpoint.connect()
        await posting(connection, *call("echo", text="hi"), path="/tools/mcp")
        assert (await connection.answer()).status == 200
        await connection.aclose()


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
async def test_asgi_app_streams_and_sees_disconnects_behind_framework_middleware(
    served: Served, speak: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def passes(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Middleware"] = "passed"
        return response

    app = mounted(http_app(served.server, **OPEN))
    app.add_middleware(BaseHTTPMiddleware, dispatch=passes)
    async with behind_hypercorn(app) as endpoint:
        connection = await endpoint.connect()
        await posting(connection, *call("wait", speak=speak))
        if speak:
            assert (await connection.head()).headers["x-middleware"] == "passed"
            assert (await connection.event()).data["method"] == "notifications/progress"
        await served.journal.started.wait()
        await connection.aclose()
        await served.journal.ended.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
async def test_client_that_disconnects_from_hypercorn_cancels_the_handler(
    hypercorned: Hypercorn, served: Served, speak: bool
) -> None:
    connection = await hypercorned.connect()
    await posting(connection, *call("wait", speak=speak))
    if speak:
        assert (await connection.head()).headers["content-type"] == "text/event-stream"
        assert (await connection.event()).data["method"] == "notifications/progress"
    await served.journal.started.wait()
    await connection.aclose()
    await served.journal.ended.wait()
    assert served.journal.cancellation is not None
    assert served.journal.cancellation.cause is CancelCause.DISCONNECT


async def test_legacy_session_can_use_a_get_stream_through_hypercorn(hypercorned: Hypercorn, served: Served) -> None:
    opened = await hypercorned.ask("POST", {**BASE}, INITIALIZE, "/api/mcp")
    session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
    accepted = await hypercorned.ask("POST", session, message("notifications/initialized"), "/api/mcp")
    assert (accepted.status, accepted.body) == (202, b"")
    listening = await hypercorned.connect()
    await listening.send("GET", session, path="/api/mcp")
    assert (await listening.head()).headers["content-type"] == "text/event-stream"
    assert (await listening.event()).data is None, "the first event is empty and gives an id"

    @served.server.tool
    async def late() -> str:
        """Come late."""
        return "late"

    assert (await listening.event()).data["method"] == "notifications/tools/list_changed"
    called = await hypercorned.ask(
        "POST", session, message("tools/call", {"name": "late", "arguments": {}}, 7), "/api/mcp"
    )
    assert called.json["result"]["content"][0]["text"] == "late"
    ended = await hypercorned.ask("DELETE", session, path="/api/mcp")
    assert ended.status == 204
    while await listening.more():
        pass
    await listening.aclose()
    lost = await hypercorned.ask("POST", session, message("ping", None, 8), "/api/mcp")
    assert lost.status == 404


async def test_client_that_is_still_sending_through_hypercorn_receives_an_early_413(hypercorned: Hypercorn) -> None:
    connection = await hypercorned.connect()
    head = "".join(f"{name}: {value}\r\n" for name, value in {**BASE, "Content-Length": "999999999"}.items())
    await connection.stream.send_all(f"POST /api/mcp HTTP/1.1\r\n{head}\r\n".encode())
    for _ in range(8):
        await connection.stream.send_all(b"x" * 65536)
    connection.expect()
    assert (await connection.answer()).status == 413
    await connection.aclose()


async def test_hypercorn_shuts_down_while_streams_are_open(served: Served) -> None:
    async with behind_hypercorn(mounted(http_app(served.server, **OPEN))) as endpoint:
        listening, calling = await endpoint.connect(), await endpoint.connect()
        await posting(listening, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await listening.head()
        await posting(calling, *call("wait", speak=True))
        await served.journal.started.wait()
        endpoint.stop.set()
        await endpoint.over.wait()
        assert served.journal.ended.is_set()
        assert served.journal.steps == ["up", "down"]
        await listening.aclose()
        await calling.aclose()


async def test_mounted_asgi_app_without_a_lifespan_answers_500_with_instructions(served: Served) -> None:
    app = http_app(served.server, **OPEN)
    async with behind_hypercorn(Starlette(routes=[Mount("/api", app)])) as endpoint:
        answer = await endpoint.ask("POST", {**BASE}, INITIALIZE, "/api/mcp")
        assert answer.status == 500
        assert b"lifespan=mcp.lifespan" in answer.body


async def test_standalone_asgi_app_runs_its_lifespan_and_answers_through_hypercorn(served: Served) -> None:
    async with behind_hypercorn(http_app(served.server, **OPEN)) as endpoint:
        answer = await endpoint.modern(*call("echo", text="alone"))
        assert answer.json["result"]["content"][0]["text"] == "alone"
    assert served.journal.steps == ["up", "down"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_trio_mcp_client_can_listen_elicit_and_cancel_through_hypercorn(
    hypercorned: Hypercorn, served: Served, era: Any
) -> None:
    @served.server.tool
    async def greet(ctx: RequestContext) -> str:
        """Ask for a name."""
        ctx.progress(1, 2)
        answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return f"hello {answer.content}"

    heard: list[float] = []
    url = f"http://127.0.0.1:{hypercorned.port}/api/mcp"
    async with open_http(url, era=era, http_proxy=None, elicitation=lambda _: {"name": "Ann"}) as client:
        greeted = await client.call_tool("greet", on_progress=lambda told: heard.append(told.progress))
        assert (greeted.text, heard) == ("hello {'name': 'Ann'}", [1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            await served.journal.started.wait()
            nursery.cancel_scope.cancel(reason="enough")
        await served.journal.ended.wait()
    assert served.journal.cancellation is not None
    assert served.journal.cancellation.cause is (CancelCause.DISCONNECT if era == "modern" else CancelCause.PEER)
