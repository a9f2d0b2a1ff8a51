"""A process ends in time after SIGTERM, however many sessions come to it for the first time in that moment."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
from tests.fleet.redis_server import redis_of_process, redis_server, redis_url  # noqa: F401 - fixtures
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.replicas.fleet import Replica
from tests.serving.http.raw import BASE, Connection, Endpoint, message

APP = """
import trio
from trio_mcp import Limits, Server

server = Server("ending", limits=Limits(drain_timeout=1.0, cleanup_grace=0.5, shutdown_grace=0.5))

@server.tool
async def wait(seconds: float) -> str:
    await trio.sleep(seconds)
    return "waited"
"""
SESSIONS = 40
IN_TIME = 20.0
"""Seconds that are enough for a drain of one, on a busy machine, and too few for a view that goes when unused."""


@pytest.fixture(params=["redis", "sqlite"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "shared.db") if request.param == "sqlite" else request.getfixturevalue("redis_url")


class Load:
    """Requests to the process at ``port``, in one session after another: streams, calls that take long, and short ones.
    ``comes`` is set with the ``nth`` of them."""

    def __init__(self, port: int, nth: int) -> None:
        self._port = port
        self._left = nth
        self.comes = trio.Event()

    async def ask(self, session: dict[str, str | None], number: int) -> None:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        except OSError:  # the process listens no more
            return
        async with stream:
            connection = Connection(stream)
            method, body = self._request(number)
            with suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError):  # the process has ended
                await connection.send(method, session, body)
                self._left -= 1
                if self._left == 0:
                    self.comes.set()
                await connection.answer()

    def _request(self, number: int) -> tuple[str, Any]:
        seconds = (0.0, 300.0)[number % 2]
        call = message("tools/call", {"name": "wait", "arguments": {"seconds": seconds}}, number)
        return ("GET", None) if number % 3 == 0 else ("POST", call)


async def test_replica_exits_within_the_time_limit_while_new_sessions_arrive(shared: str, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    one, two = (Replica(free_port(), shared, tmp_path / f"{name}.log", [str(app)]) for name in ("one", "two"))
    try:
        await one.start()
        async with trio.open_nursery() as nursery:
            opener = Endpoint(one.port, nursery)
            sessions = [await opener.initialize() for _ in range(SESSIONS)]
        for nth in (1, SESSIONS // 3, SESSIONS // 2, SESSIONS):
            await two.start()
            load = Load(two.port, nth)
            async with trio.open_nursery() as nursery:
                assert (await Endpoint(two.port, nursery).ask("GET", {**BASE}, path="/healthz")).status == 200
                for number, session in enumerate(sessions):
                    nursery.start_soon(load.ask, session, number)
                with trio.fail_after(PATIENCE):
                    await load.comes.wait()
                two.process.send_signal(signal.SIGTERM)
                with trio.fail_after(IN_TIME):
                    assert await two.process.ended() == 0, two.log.read_text()[-3000:]
        assert "Traceback" not in two.log.read_text()
    finally:
        one.kill()
        two.kill()
