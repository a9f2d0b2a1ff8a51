"""Opening functions as async context managers, with advice for those who await them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest

from trio_mcp.concurrency.misuse import async_with_only

left_by: list[BaseException | None] = []


@async_with_only("thing")
@asynccontextmanager
async def open_thing(name: str, *, size: int = 1) -> AsyncGenerator[tuple[str, int]]:
    """Open a thing."""
    failure: BaseException | None = None
    try:
        with suppress(LookupError):
            yield name, size
    except BaseException as error:
        failure = error
        raise
    finally:
        left_by.append(failure)


@async_with_only("")
@asynccontextmanager
async def open_nothing() -> AsyncGenerator[None]:
    yield


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    left_by.clear()


async def test_async_context_manager_function_runs_its_cleanup_when_the_async_with_block_ends() -> None:
    async with open_thing("a", size=2) as thing:
        assert thing == ("a", 2)
        assert left_by == []
    assert left_by == [None]


async def test_async_context_manager_function_can_catch_the_exception_raised_in_its_block() -> None:
    error = ValueError("block")
    with pytest.raises(ValueError, match="block") as caught:
        async with open_thing("a"):
            raise error
    assert caught.value is error
    assert left_by == [error]


async def test_async_context_manager_function_can_suppress_the_exception_raised_in_its_block() -> None:
    async with open_thing("a"):
        raise LookupError
    assert left_by == [None]


@pytest.mark.parametrize(
    ("opening", "advice"),
    [
        (open_thing("a"), "open_thing(...) is an async context manager and can't be awaited: write "
         "async with open_thing(...) as thing:"),
        (open_nothing(), "open_nothing(...) is an async context manager and can't be awaited: write "
         "async with open_nothing(...):"),
    ],
)  # fmt: skip
async def test_awaiting_the_call_of_an_async_context_manager_function_raises_and_advises_async_with(
    opening: Any, advice: str
) -> None:
    with pytest.raises(TypeError) as caught:
        await opening
    assert str(caught.value) == advice


def test_async_context_manager_function_keeps_name_and_docstring_of_the_decorated_generator() -> None:
    assert (open_thing.__name__, open_thing.__doc__) == ("open_thing", "Open a thing.")
    assert isinstance(open_thing("a"), AbstractAsyncContextManager)
