"""What is left of the errors of broken streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from trio_mcp.transports.streams import drop_tracebacks, until_broken


@pytest.fixture
async def stream() -> AsyncGenerator[trio.SocketStream]:
    """A stream whose other end is gone."""
    ours, theirs = trio.socket.socketpair()
    theirs.close()
    stream = trio.SocketStream(ours)
    yield stream
    await trio.aclose_forcefully(stream)


async def test_drop_tracebacks_function_keeps_the_os_error_behind_a_broken_stream_without_its_traceback(
    stream: trio.SocketStream,
) -> None:
    with pytest.raises(trio.BrokenResourceError) as caught:
        await stream.send_all(b"x")
    cause = caught.value.__cause__
    assert isinstance(cause, BrokenPipeError)
    assert cause.__traceback__ is not None
    drop_tracebacks(caught.value)
    assert caught.value.__cause__ is cause
    assert cause.__traceback__ is None


async def test_drop_tracebacks_function_removes_the_traceback_of_the_os_error_behind_a_closed_stream(
    stream: trio.SocketStream,
) -> None:
    stream.socket.close()
    with pytest.raises(trio.ClosedResourceError) as caught:
        await stream.send_all(b"x")
    translated = caught.value.__context__
    assert isinstance(translated, OSError)
    assert translated.__traceback__ is not None
    drop_tracebacks(caught.value)
    assert translated.__traceback__ is None


@pytest.mark.parametrize("act", ["break", "raise"])
async def test_until_broken_block_keeps_the_traceback_of_an_exception_that_is_handled_around_the_block(
    stream: trio.SocketStream, act: str
) -> None:
    kept: list[BaseException] = []
    try:
        raise OSError("the application's")
    except OSError as around:
        kept.append(around)
        with until_broken():
            if act == "raise":
                raise trio.ClosedResourceError  # noqa: B904 - as where nothing is translated
            await stream.send_all(b"x")
    assert kept[0].__traceback__ is not None


async def test_until_broken_block_ends_without_an_exception_when_its_stream_breaks(stream: trio.SocketStream) -> None:
    done: list[int] = []
    with until_broken():
        done.append(1)
        await stream.send_all(b"x")
        done.append(2)
    assert done == [1]


async def test_until_broken_block_propagates_exceptions_unrelated_to_a_broken_stream() -> None:
    with pytest.raises(ZeroDivisionError), until_broken():
        raise ZeroDivisionError
