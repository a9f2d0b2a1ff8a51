"""Clients of asyncio programs: `trio_mcp.aio`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.bridging.seen import Seen, run, time_out_when
from tests.interaction.client.raw import RawServer
from tests.patience import PATIENCE

from trio_mcp import CancelCause, Progress, aio
from trio_mcp.types import ElicitResult, UnreadableMessage

ERAS: list[Literal["legacy", "modern"]] = ["legacy", "modern"]


@pytest.mark.parametrize("era", ERAS)
def test_asyncio_client_calls_a_tool(seen: Seen, era: Any) -> None:
    async def main() -> str:
        async with aio.open_memory(seen.server, era=era) as client:
            assert client.server_info is not None
            assert client.server_info.name == "seen"
            return (await client.call_tool("echo", {"text": "hi"})).content[0].text  # pyright: ignore

    assert run(main) == "hi"


@pytest.mark.parametrize("era", ERAS)
def test_cancelled_asyncio_task_cancels_its_call_in_the_server(seen: Seen, era: Any) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server, era=era) as client:
            task = asyncio.create_task(client.call_tool("wait"))
            await asyncio.to_thread(seen.began.wait)
            task.cancel("the user has left")
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.ping()
            assert [(each.cause, each.reason) for each in seen.cancelled if each] == [
                (CancelCause.PEER, "the user has left")
            ]
            assert (await client.call_tool("echo", {"text": "hi"})).is_error is not True

    run(main)


def test_asyncio_timeout_around_a_call_cancels_the_call_in_the_server(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server) as client:
            await time_out_when(seen.began, client.call_tool("wait"))
            await client.ping()
            (cancelled,) = seen.cancelled
            assert cancelled is not None
            assert (cancelled.cause, cancelled.reason) == (CancelCause.PEER, "the asyncio task was cancelled")

    run(main)


@pytest.mark.parametrize("era", ERAS)
def test_elicitation_handler_of_an_asyncio_client_runs_in_the_event_loop(seen: Seen, era: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def answer(_: Any) -> ElicitResult:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            return ElicitResult("accept", {"name": "Ada"})

        async with aio.open_memory(seen.server, era=era, elicitation=answer) as client:
            result = await client.call_tool("ask")
            assert "Ada" in result.content[0].text  # pyright: ignore

    run(main)


@pytest.mark.parametrize("era", ERAS)
def test_elicitation_handler_passed_to_a_call_runs_in_the_event_loop_of_the_caller(seen: Seen, era: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def refuse(_: Any) -> ElicitResult:
            return ElicitResult("decline")

        async def answer(_: Any) -> ElicitResult:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            return ElicitResult("accept", {"name": "Ada"})

        async with aio.open_memory(seen.server, era=era, elicitation=refuse) as client:
            assert "Ada" in (await client.call_tool("ask", elicitation=answer)).text
            assert "decline" in (await client.call_tool("ask")).text

    run(main)


def test_on_unreadable_callback_of_an_asyncio_client_runs_in_the_event_loop(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, r'handshake(); write(b"stray\n"); result(until("ping"), {})')
    told = queue.SimpleQueue[tuple[str, int]]()

    def on_unreadable(message: UnreadableMessage) -> None:
        told.put((message.text, threading.get_ident()))

    async def main() -> None:
        async with aio.open_stdio(raw.command, era="legacy", on_unreadable=on_unreadable) as client:
            await client.ping()
            assert await asyncio.to_thread(told.get, timeout=PATIENCE) == ("stray", threading.get_ident())

    run(main)


def test_asyncio_client_with_an_async_on_unreadable_callback_raises_value_error(seen: Seen) -> None:
    async def on_unreadable(_: UnreadableMessage) -> None:
        raise AssertionError

    async def main() -> None:
        with pytest.raises(ValueError, match="write it with def, not with async def"):
            async with aio.open_memory(seen.server, on_unreadable=on_unreadable):  # type: ignore[arg-type]
                pass

    run(main)


def test_asyncio_progress_callback_runs_in_the_calling_task(seen: Seen) -> None:
    async def main() -> None:
        told: list[float] = []
        me = asyncio.current_task()

        async def on_progress(news: Progress) -> None:
            assert asyncio.current_task() is me
            await asyncio.sleep(0)
            told.append(news.progress)

        async with aio.open_memory(seen.server) as client:
            await client.call_tool("count", {"to": 5}, on_progress=on_progress)
        assert told == sorted(told)
        assert told[-1] == 4, "later reports replace earlier ones that nobody took"

    run(main)


def test_exception_in_an_asyncio_progress_callback_cancels_the_call_and_is_raised(seen: Seen) -> None:
    def fail(_: Progress) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with aio.open_memory(seen.server) as client:
            with pytest.raises(ZeroDivisionError):
                await client.call_tool("count", {"to": 5}, on_progress=fail)

    run(main)


USES: list[Callable[[Any], Any]] = [
    lambda _: aio.open_memory(Seen().server).__aenter__(),
    lambda _: aio.open_stdio(["python", "server.py"]).__aenter__(),
    lambda _: aio.open_group({}).__aenter__(),
    lambda client: client.call_tool("echo", {"text": "a"}),
    lambda client: client.call_tool("ask", elicitation=print),
    lambda client: client.start_task("wait"),
    lambda client: anext(client.list_tools()),
    lambda client: client.listen().__aenter__(),
]


@pytest.mark.parametrize("use", USES)
def test_aio_function_called_outside_asyncio_raises_and_names_the_module_to_use(
    seen: Seen, use: Callable[[Any], Any]
) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server) as client:

            async def under_trio() -> None:
                with pytest.raises(RuntimeError, match="trio runs this task: use trio_mcp itself"):
                    await use(client)

            await asyncio.to_thread(trio.run, under_trio)

            def without_loop() -> None:
                with pytest.raises(
                    RuntimeError, match=r"needs a running asyncio event loop: .* use trio_mcp\.blocking"
                ):
                    use(client).send(None)

            await asyncio.to_thread(without_loop)
            assert (await client.call_tool("echo", {"text": "hi"})).is_error is not True

    run(main)
