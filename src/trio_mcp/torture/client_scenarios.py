"""The scenarios for clients. ``scenarios.toml`` has the texts of each scenario."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from .client_under_test import TortureServer
from .peers import PROMPTLY
from .scenarios import Failed, load_scenarios

_EXIT: Final = 10.0
"""Seconds within which a client must exit."""
_FLOOD: Final = 10.0
"""Seconds within which a client must read 10,000 messages."""


async def client_cancels(server: TortureServer) -> None:
    await server.cancelled_call()
    await server.check_alive()


async def client_no_stray_cancel(server: TortureServer) -> None:
    await server.answer_text(await server.order("fast"), "fine")
    await server.check_alive()
    if server.received(method="notifications/cancelled"):
        raise Failed("the client cancelled a call that the server had already answered")


async def client_late_result(server: TortureServer) -> None:
    call = await server.cancelled_call()
    await server.answer_text(call, "too late")
    await server.refuse(call, -32603, "and once more")
    await server.check_alive()


async def client_line_not_json(server: TortureServer) -> None:
    for line in (b"Server listening on stdio!", b"", b'{"jsonrpc": "2.0", "method": "\xff"}'):
        await server.send(line)
    await server.check_alive()


def _request_during_a_call(method: str, error_code: int | None) -> Callable[[TortureServer], Awaitable[None]]:
    """Return a scenario in which the server sends a request to the client during a call.

    The client must answer with this error code, or with a result if the code is `None`.
    """

    async def request(server: TortureServer) -> None:
        call = await server.order("slow")
        await server.request("torture", method)
        answer = await server.response("torture", PROMPTLY)
        if answer.get("error", {}).get("code") != error_code:
            raise Failed(f"the client's response has the wrong error code: {str(answer)[:200]}")
        await server.answer_text(call, "done")
        await server.check_alive()

    return request


client_answers_ping = _request_during_a_call("ping", None)
client_unknown_request = _request_during_a_call("torture/unknown", -32601)


async def client_flood(server: TortureServer) -> None:
    call = await server.order("slow")
    with trio.move_on_after(_FLOOD * server.under_test.patience) as scope:
        for number in range(10_000):
            await server.log("info", f"message {number}")
        await server.answer_text(call, "done")
        await server.check_alive()
    if scope.cancelled_caught:
        raise Failed(f"the client didn't make its next tool call within {_FLOOD:g} s")


async def client_large_result(server: TortureServer) -> None:
    await server.answer_text(await server.order("slow"), "x" * (4 * 1024 * 1024))
    await server.check_alive()


async def client_ids(server: TortureServer) -> None:
    for _ in range(20):
        await server.answer_text(await server.order("fast"), "fine")
    await server.check_alive()
    ids = [repr(message["id"]) for message in server.received() if {"id", "method"} <= message.keys()]
    if len(ids) != len(set(ids)):
        raise Failed("the client used a request id twice")


async def client_exit(server: TortureServer) -> None:
    await server.end()
    with trio.move_on_after(_EXIT * server.under_test.patience) as scope, suppress(Failed):
        await server.drain(math.inf)
    if scope.cancelled_caught:
        raise Failed(f"the client didn't close the server's standard input within {_EXIT:g} s")
    await server.aclose()
    await server.check_exit(_EXIT)


async def client_server_dies(server: TortureServer) -> None:
    await server.order("slow")
    await server.aclose()
    await server.check_exit(_EXIT)


async def client_odd_messages(server: TortureServer) -> None:
    await server.notify("notifications/torture", {"a": 1})
    await server.notify("notifications/progress", {"progressToken": "unknown", "progress": 1})
    await server.notify("notifications/cancelled", {"requestId": 99_999})
    await server.send({"id": 424_242, "result": {}})
    await server.send({"id": None, "error": {"code": -32700, "message": "?"}})
    await server.check_alive()


CLIENT_SCENARIOS: Final = load_scenarios("client", vars())
