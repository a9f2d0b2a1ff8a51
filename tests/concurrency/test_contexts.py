"""Generator context managers that leave nothing to the garbage collector."""

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
def test_generator_context_manager_keeps_no_reference_to_the_exception(context: type) -> None:
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
async def test_async_generator_context_manager_keeps_no_reference_to_the_exception(context: type) -> None:
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


def test_generator_context_manager_adds_no_frames_to_the_traceback_of_an_exception_in_its_block() -> None:
    error = KeyError()
    with pytest.raises(KeyError) as caught, passing():
        raise error
    assert caught.value is error
    assert [entry.name for entry in caught.traceback] == [
        "test_generator_context_manager_adds_no_frames_to_the_traceback_of_an_exception_in_its_block"
    ]


def names_in(error: BaseException) -> list[str]:
    return [entry.f_code.co_name for entry, _ in walk_tb(error.__traceback__)]


@pytest.mark.parametrize("context", [swallowing, replacing, passing])
def test_exception_suppressed_inside_a_context_manager_keeps_its_original_traceback(context: type) -> None:
    error = KeyError()
    with suppress(LookupError), context():
        raise error
    assert names_in(error) == ["test_exception_suppressed_inside_a_context_manager_keeps_its_original_traceback"]


@pytest.mark.parametrize("context", [swallowing_async, replacing_async])
async def test_exception_suppressed_inside_an_async_context_manager_keeps_its_original_traceback(context: type) -> None:
    error = KeyError()
    with suppress(LookupError):
        async with context():
            raise error
    assert names_in(error) == ["test_exception_suppressed_inside_an_async_context_manager_keeps_its_original_traceback"]


@pytest.mark.parametrize("error", [StopIteration(), RuntimeError(), GeneratorExit()])
def test_exception_raised_by_the_generator_of_a_context_manager_propagates(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, ExitStack() as stack:
        stack.enter_context(passing())
        raise error
    assert caught.value is error


def test_function_decorated_as_a_context_manager_keeps_its_name() -> None:
    assert (passing.__name__, swallowing_async.__name__) == ("passing", "swallowing_async")
