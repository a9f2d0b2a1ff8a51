"""Extensions behave the same over every transport, legacy and modern, and with a client that lacks the extension."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.forked import forked_command
from tests.interaction import extension_server
from tests.interaction.extension_server import (
    Done,
    Work,
    added,
    ask,
    confirm,
    count,
    did,
    ended,
    grown,
    hang,
    run,
    work,
)
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE
from trio.testing import MockClock, Sequencer, wait_all_tasks_blocked

from trio_mcp import (
    Client,
    InMemory,
    Limits,
    MethodUnavailable,
    PeerError,
    Server,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
    proxy,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.testing import ScriptedClient, ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.types import Extension

Era = Literal["modern", "legacy"]
SERVER = str(Path(extension_server.__file__))
FAR = ("stdio", "tcp", "unix", "websocket", "http", "proxied stdio")


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


class Host:
    """A client's side: what it was told, and how it answers."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Work]] = []
        self.news = trio.lowlevel.ParkingLot()
        self.asked = trio.Event()
        self.left = trio.Event()

    def note(self, what: str, params: Work) -> None:
        self.told.append((what, params))
        self.news.unpark_all()

    async def has(self, what: str, params: Work) -> None:
        while (what, params) not in self.told:
            await self.news.park()

    async def never(self, *_: Any) -> Any:
        self.asked.set()
        try:
            await trio.sleep_forever()
        finally:
            self.left.set()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "extensions": [work],
            "handlers": {confirm: self.never},
            "on_notification": {did: partial(self.note, "did"), grown: partial(self.note, "grown")},
            "roots": self.never,
        }


@asynccontextmanager
async def reached(wire: str, tmp_path: Path) -> AsyncGenerator[Any]:
    """Open what opens clients of one server over ``wire``; over stdio each has a server of its own."""
    server = extension_server.server()
    match wire:
        case "stdio":
            yield partial(open_stdio, forked_command([SERVER]))
        case "proxied stdio":
            yield InMemory(proxy(forked_command([SERVER]))).open
        case "tcp":
            async with serving(serve_tcp, server, port=0) as listeners:
                yield partial(open_tcp, "127.0.0.1", port_of(listeners))
        case "unix":
            path = tmp_path / "socket"
            async with serving(serve_unix, server, path):
                yield partial(open_unix, path)
        case "websocket":
            async with serving(serve_websocket, server, port=0) as listeners:
                yield partial(open_websocket, f"ws://127.0.0.1:{port_of(listeners)}/mcp")
        case _:
            async with serving(serve_http, server, port=0) as listeners:
                yield partial(open_http, f"http://127.0.0.1:{port_of(listeners)}/mcp")


@pytest.mark.parametrize("transport", FAR)
async def test_extension_requests_and_notifications_are_handled_over_every_transport(
    transport: str, era: Era, tmp_path: Path
) -> None:
    host = Host()
    with trio.fail_after(PATIENCE):
        async with reached(transport, tmp_path) as opening, opening(era=era, **host.options) as client:
            settings = client.server_extension(work)
            assert settings is not None
            assert settings.most == 7
            assert await client.request(run, Work("a", 2)) == Done(["a", "a", "3"])
            assert host.told == [("did", Work("a", 0)), ("did", Work("a", 1))]
            await client.send_notification(added, Work("news"))
            await host.has("grown", Work("news"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.request, hang, Work("left"))
                await host.has("did", Work("left"))
                nursery.cancel_scope.cancel(reason="enough")
            await client.request(ended, Work("left"))


@pytest.mark.parametrize("transport", FAR)
async def test_invalid_extension_requests_get_errors_over_every_transport(
    transport: str, era: Era, tmp_path: Path
) -> None:
    with trio.fail_after(PATIENCE):
        async with reached(transport, tmp_path) as opening:
            async with opening(era=era, **Host().options) as client:
                for params in ({}, {"name": 1}, {"name": "a", "count": "many"}):
                    assert await code_of(client, run.name, params) == -32602
                await client.send_notification(added.name, {"name": 7})
                assert await client.request(run, Work("a")) == Done(["a", "3"])
            other: Extension[Any, Any] = Extension("com.example/other")
            for method in (run.name, ended.name, "com.example/work/none"):
                other.method(method, dict[str, Any], dict[str, Any])
            async with opening(era=era, extensions=[other]) as undeclared:
                assert await code_of(undeclared, run.name, {"name": "a"}) == (-32021 if era == "modern" else -32600)
                assert await code_of(undeclared, "com.example/work/none") == -32601
                await undeclared.request(ended.name, {"name": "a", "count": 0}, dict[str, Any])


async def code_of(client: Client, method: str, params: Any = None) -> int:
    with pytest.raises(PeerError) as caught:
        await client.request(method, params, dict[str, Any])
    return caught.value.code


# A cancel at each point of a request; `open_memory` is over HTTP, too, by the conftest of this folder


async def test_extension_request_in_a_cancelled_scope_sends_nothing(era: Era) -> None:
    async with open_memory(extension_server.server(), era=era, **Host().options) as client:
        with trio.CancelScope() as scope:
            scope.cancel(reason="never mind")
            await client.request(hang, Work("never"))
        assert scope.cancelled_caught
        assert await client.request(run, Work("a")) == Done(["a", "3"])
        assert await client.request(count, Work("never")) == Done([])


async def test_extension_request_cancelled_while_the_client_answers_stops_client_and_server_handlers(era: Era) -> None:
    host = Host()
    with trio.fail_after(PATIENCE):
        async with open_memory(extension_server.server(), era=era, **host.options) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.request, ask, Work("asked"))
                await host.asked.wait()
                nursery.cancel_scope.cancel(reason="enough")
            await host.left.wait()
            await client.request(ended, Work("asked"))
            assert await client.request(run, Work("a")) == Done(["a", "3"])


class Gated:
    """A server whose only request waits for its turn in ``steps``."""

    def __init__(self, **limits: Any) -> None:
        gated = Extension("com.example/work")
        row = gated.method("com.example/work/run", Work, Done)
        self.server = Server("gated", extensions=[gated], limits=Limits(**limits))
        self.steps = Sequencer()
        self.ran: list[str] = []

        @self.server.handles(row)
        async def running(params: Work) -> Done:
            self.ran.append(params.name)
            if params.name == "first":
                async with self.steps(1):
                    pass
            return Done([params.name])


def scripted(server: Server, era: Era) -> AbstractAsyncContextManager[ScriptedClient]:
    revision = "2026-07-28" if era == "modern" else "2025-11-25"
    return open_scripted_client(server, revision, {"extensions": {work.name: {}}})


async def test_extension_request_cancelled_in_the_queue_never_runs(era: Era, autojump_clock: MockClock) -> None:
    gated = Gated(max_in_flight=1)
    async with scripted(gated.server, era) as client:
        first, second, third = [await client.request(run.name, {"name": name}) for name in ("first", "second", "third")]
        await wait_all_tasks_blocked()
        async with gated.steps(0):
            await client.cancel(second, "enough")
            await wait_all_tasks_blocked()
        for call in (first, third):
            await client.expect_result(call)
        await client.expect_silence(1)
    assert gated.ran == ["first", "third"]


@pytest.mark.parametrize("moments", range(8))
async def test_request_after_a_cancel_that_arrives_while_an_extension_reply_is_sent_is_answered(
    era: Era, moments: int, autojump_clock: MockClock
) -> None:
    gated = Gated()
    async with scripted(gated.server, era) as client:
        first = await client.request(run.name, {"name": "first"})
        await wait_all_tasks_blocked()
        async with gated.steps(0):
            pass
        for _ in range(moments):
            await trio.lowlevel.checkpoint()
        await client.cancel(first)
        second = await client.request(run.name, {"name": "second"})
        message = await client.receive()
        if message["id"] == first:
            message = await client.receive()
        assert (message["id"], message["result"]["names"]) == (second, ["second"])
        await client.expect_silence(1)


# A hostile peer


@pytest.mark.parametrize("settings", [{}, {"most": "many"}, [], None, "yes", {"deep": [[[[1]]]]}])
async def test_server_serves_a_client_that_declares_a_thousand_extensions(
    era: Era, settings: Any, autojump_clock: MockClock
) -> None:
    many = {f"com.example/e{number}": settings for number in range(1000)} | {"no name": settings, "": settings}

    async def behind(peer: ScriptedServer) -> None:
        await peer.accept("2026-07-28" if era == "modern" else "2025-11-25", {"extensions": many})
        await peer.read_to_end()

    unknown = Extension("com.example/unknown")
    row = unknown.method("com.example/unknown/do", Work, Done)
    async with open_scripted_server(behind, era=era, extensions=[unknown]) as client:
        assert client.server_extension(unknown) is None
        with pytest.raises(MethodUnavailable):
            await client.request(row, Work("a"))
    revision = "2026-07-28" if era == "modern" else "2025-11-25"
    async with open_scripted_client(extension_server.server(), revision, {"extensions": many}) as client:
        refused = await client.request(run.name, {"name": "a"})
        await client.expect_error(refused, -32021 if era == "modern" else -32600)
        await client.expect_result(await client.request(ended.name, {"name": "a", "count": 0}))
