"""Callbacks of a client: which are called the moment their notification was read, and which wait for their turn."""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from trio_mcp.client.current_call import CallContexts
from trio_mcp.client.options import ClientSettings
from trio_mcp.client.server_messages import Callbacks
from trio_mcp.protocol.methods import METHODS
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.state.events import NotificationReceived
from trio_mcp.types import LogParams

_word: ContextVar[str] = ContextVar("word", default="none")


def log(data: Any) -> NotificationReceived:
    return NotificationReceived(METHODS["notifications/message"], {"level": "info", "data": data}, LATEST_LEGACY)


def callbacks(on_log: Any) -> Callbacks:
    made = Callbacks(ClientSettings(on_log=on_log), CallContexts())
    made.outbound = cast("Any", SimpleNamespace(only=None))
    return made


def test_sync_log_callback_is_called_immediately() -> None:
    told = list[LogParams]()
    for_logs = callbacks(told.append)
    assert [for_logs.wants(log(number)) for number in (1, 2)] == [False, False]
    assert told == [LogParams("info", 1), LogParams("info", 2)]


def test_client_without_a_log_callback_ignores_log_messages() -> None:
    assert not callbacks(None).wants(log(1))


def test_log_message_with_invalid_parameters_is_ignored() -> None:
    told = list[LogParams]()
    bad = NotificationReceived(METHODS["notifications/message"], {"level": 1}, LATEST_LEGACY)
    assert not callbacks(told.append).wants(bad)
    assert told == []


async def test_async_log_callback_runs_in_the_notification_task() -> None:
    told = list[Any]()

    async def on_log(message: LogParams) -> None:
        told.append(message.data)
        await trio.lowlevel.checkpoint()

    for_logs = callbacks(on_log)
    assert for_logs.wants(log(1))
    assert told == []
    await for_logs.notified(log(1))
    assert told == [1]


async def test_sync_log_callback_that_returns_an_awaitable_is_called_once_per_message() -> None:
    begun, done = list[Any](), list[Any]()

    async def write(message: LogParams) -> None:
        await trio.lowlevel.checkpoint()
        done.append(message.data)

    def on_log(message: LogParams) -> Any:
        begun.append(message.data)
        return write(message)

    for_logs, first, second = callbacks(on_log), log(1), log(2)
    assert for_logs.wants(first)
    assert for_logs.wants(second)
    assert begun == [1]
    for event in (first, second):
        await for_logs.notified(event)
    assert (begun, done) == ([1, 2], [1, 2])


async def test_awaitable_returned_by_a_sync_log_callback_is_awaited_even_if_a_later_message_follows() -> None:
    done = list[Any]()

    async def write(message: LogParams) -> None:
        await trio.lowlevel.checkpoint()
        done.append(message.data)

    for_logs, second = callbacks(lambda message: write(message)), log(2)
    assert for_logs.wants(log(1))
    assert for_logs.wants(second)
    await for_logs.notified(second)
    assert done == [1, 2]


def test_exception_in_a_log_callback_is_logged_and_later_messages_are_handled(caplog: pytest.LogCaptureFixture) -> None:
    told = list[Any]()

    def on_log(message: LogParams) -> None:
        told.append(message.data)
        if message.data == "bad":
            raise LookupError("callback")

    for_logs = callbacks(on_log)
    assert [for_logs.wants(log(data)) for data in ("bad", "good")] == [False, False]
    assert told == ["bad", "good"]
    [record] = caplog.records
    assert record.getMessage() == "a notification callback failed"
    assert record.exc_info is not None


def test_context_variables_set_by_a_sync_callback_do_not_affect_other_callbacks() -> None:
    seen = list[str]()

    def on_log(message: LogParams) -> None:
        seen.append(_word.get())
        _word.set(message.data)

    for_logs = callbacks(on_log)
    for word in ("one", "two"):
        for_logs.wants(log(word))
    assert (seen, _word.get()) == (["none", "one"], "none")
