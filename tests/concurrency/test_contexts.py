"""Context managers of generators: as those of contextlib, and nothing is left to the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, suppress
from traceback import walk_tb
from weakref import ref

import pytest

from trio_mcp.concurrency.contexts import asynccontextmanager, contextmanager


class Held:
    """Something that a frame knows which an exception came through."""


def fail(held: Held) -> None:
    raise KeyError(held is None)


@contextmanager
def swallowing() -> Generator[str]:
    with suppress(KeyError):
        yield "given"


@contextmanager
def replacing() -> Generator[str]:
    try:
        yield "given"
    except KeyError as error:
        raise LookupError from error


@contextmanager
def passing() -> Generator[str]:
    yield "given"


@asynccontextmanager
async def swallowing_async() -> AsyncGenerator[str]:
    with swallowing() as given:
        yield given


@asynccontextmanager
async def replacing_async() -> AsyncGenerator[str]:
    with replacing() as given:
        yield given


@pytest.fixture(autouse=True)
def no_collector() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("context", [swallowing, replacing, passing])
def test_what_the_block_was_left_by_keeps_nothing(context: type) -> None:
    def leave() -> ref[Held]:
        held = Held()
        try:
            with context() as given:
                assert given == "given"
                fail(held)
        except LookupError:
            pass
        return ref(held)

    assert leave()() is None


@pytest.mark.parametrize("context", [swallowing_async, replacing_async])
async def test_what_an_async_block_was_left_by_keeps_nothing(context: type) -> None:
    async def leave() -> ref[Held]:
        held = Held()
        try:
            async with context() as given:
                assert given == "given"
                fail(held)
        except LookupError:
            pass
        return ref(held)

    assert (await leave())() is None


def test_an_exception_that_passes_is_the_same_and_its_traceback_begins_where_it_is_caught() -> None:
    error = KeyError()
    with pytest.raises(KeyError) as caught, passing():
        raise error
    assert caught.value is error
    assert [entry.name for entry in caught.traceback] == [
        "test_an_exception_that_passes_is_the_same_and_its_traceback_begins_where_it_is_caught"
    ]


def names_in(error: BaseException) -> list[str]:
    return [entry.f_code.co_name for entry, _ in walk_tb(error.__traceback__)]


@pytest.mark.parametrize("context", [swallowing, replacing, passing])
def test_the_traceback_of_what_the_block_was_left_by_is_what_it_was_before(context: type) -> None:
    error = KeyError()
    with suppress(LookupError), context():
        raise error
    assert names_in(error) == ["test_the_traceback_of_what_the_block_was_left_by_is_what_it_was_before"]


@pytest.mark.parametrize("context", [swallowing_async, replacing_async])
async def test_the_traceback_of_what_an_async_block_was_left_by_is_what_it_was_before(context: type) -> None:
    error = KeyError()
    with suppress(LookupError):
        async with context():
            raise error
    assert names_in(error) == ["test_the_traceback_of_what_an_async_block_was_left_by_is_what_it_was_before"]


@pytest.mark.parametrize("error", [StopIteration(), RuntimeError(), GeneratorExit()])
def test_what_generators_raise_themselves_passes_too(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, ExitStack() as stack:
        stack.enter_context(passing())
        raise error
    assert caught.value is error


def test_a_function_keeps_its_name() -> None:
    assert (passing.__name__, swallowing_async.__name__) == ("passing", "swallowing_async")
