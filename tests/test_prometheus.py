"""The page for Prometheus."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import trio
from tests.fleet.fleet import FORM, Fleet, accepted, fleet, question_in
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.serving.http.scenes import text_of

from trio_mcp import MemoryStorage, RedisStorage, RequestContext, Server, open_memory
from trio_mcp.server.sharing import SharedStorage

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")

from trio_mcp.prometheus import PrometheusPage


def read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Pages:
    """The pages of two replicas, each of which has one."""

    def __init__(self) -> None:
        self._pages = [PrometheusPage(), PrometheusPage()]
        self._ports = list[int]()

    def server(self, number: int) -> Server:
        return Server("measured", tracing=self._pages[number].tracing)

    async def serve(self, nursery: trio.Nursery) -> None:
        self._ports = [await nursery.start(page.serve, "127.0.0.1", 0) for page in self._pages]

    async def shared(self, number: int) -> dict[str, float]:
        """The metrics of what replica ``number`` shares, on its page."""
        text = await trio.to_thread.run_sync(read, f"http://127.0.0.1:{self._ports[number]}/metrics")
        lines = [each.split() for each in text.splitlines() if each.startswith("trio_mcp_shared_")]
        return {name.removeprefix("trio_mcp_shared_"): float(value) for name, value in lines}


def ask_for_a_name(server: Server, members: Fleet, number: int) -> None:
    @server.tool
    async def greet(ctx: RequestContext) -> str:
        return f"hello {(await ctx.elicit('Who?', FORM)).content} from {number}"


async def carry(members: Fleet) -> None:
    """Have the second replica carry a retry to the first."""
    one, two = members
    question = question_in(await one.call("greet"))
    answer = await two.call("greet", before=question, answers=accepted(question, name="Ada"))
    assert text_of(answer.json) == "hello {'name': 'Ada'} from 0"


async def test_prometheus_page_is_served_until_the_task_that_serves_it_ends() -> None:
    page = PrometheusPage()
    server = Server("measured", tracing=page.tracing)

    @server.tool
    async def greet() -> str:
        return "hello"

    threads = threading.active_count()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(page.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}/metrics"
        async with open_memory(server) as client:
            await client.call_tool("greet")
            text = await trio.to_thread.run_sync(read, url)
        nursery.cancel_scope.cancel(reason="the test is over")
    counts = [each for each in text.splitlines() if each.startswith("mcp_server_operation_duration_seconds_count{")]
    (line,) = (each for each in counts if "tools/call" in each)
    assert line.endswith(" 1.0")
    assert 'gen_ai_tool_name="greet"' in line
    assert "trio_mcp_connections 1.0" in text
    with pytest.raises(URLError):
        await trio.to_thread.run_sync(read, url)
    names = [thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio")]
    assert len(names) <= threads, names


async def test_prometheus_page_on_a_used_port_raises_os_error() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        with pytest.raises(OSError, match="in use"):
            await PrometheusPage().serve("127.0.0.1", listener.socket.getsockname()[1])


async def test_prometheus_pages_count_retries_forwarded_between_replicas() -> None:
    pages = Pages()
    async with (
        fleet(ask_for_a_name, make=pages.server, shared=MemoryStorage()) as members,
        trio.open_nursery() as nursery,
    ):
        await pages.serve(nursery)
        await carry(members)
        first, second = await pages.shared(0), await pages.shared(1)
        nursery.cancel_scope.cancel(reason="the test is over")
    nothing = dict.fromkeys(("round_trips_total", "reconnects_total", "gaps_total", "uncertain_total"), 0.0)
    assert first == {**nothing, "carried_total": 0, "carried_here_total": 1, "letters_total": 1}
    assert second == {**nothing, "carried_total": 1, "carried_here_total": 0, "letters_total": 1}


async def test_prometheus_pages_show_redis_availability_and_reconnects(tmp_path: Path) -> None:
    pytest.importorskip("coredis", reason="the extra redis is not installed")
    pages = Pages()
    with RedisServer(tmp_path, "appendonly yes") as redis:
        shared: SharedStorage = RedisStorage(redis.url)

        async def wait_until(name: str, least: float, most: float = math.inf) -> dict[str, float]:
            with trio.fail_after(PATIENCE):
                while not least <= (found := await pages.shared(1))[name] <= most:  # noqa: ASYNC110 - another's page
                    await trio.sleep(0.1)
            return found

        async with fleet(ask_for_a_name, make=pages.server, shared=shared) as members, trio.open_nursery() as nursery:
            await pages.serve(nursery)
            await carry(members)
            before = await pages.shared(1)
            redis.kill()
            await wait_until("up", 0, 0)
            await trio.to_thread.run_sync(redis.start)
            await wait_until("up", 1)
            await wait_until("gaps_total", before["gaps_total"] + 1)
            await wait_until("reconnects_total", 1)
            after = await wait_until("round_trips_total", before["round_trips_total"] + 1)
            nursery.cancel_scope.cancel(reason="the test is over")
    assert before["up"] == before["carried_total"] == 1
    assert before["reconnects_total"] == 0
    assert before["round_trips_total"] > before["letters_total"] > 0
    assert after["round_trips_total"] > before["round_trips_total"]
