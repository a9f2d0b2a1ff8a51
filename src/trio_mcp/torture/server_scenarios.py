"""The scenarios for servers: cancellation, requests to the client, progress and logs, load, malformed messages, and
the ends of processes and connections. ``scenarios.toml`` has the texts of each scenario."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import trio

from ..classes import evolve
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject, as_object
from .scenarios import PROMPTLY, QUIET, Failed, Skipped, load_scenarios
from .server_under_test import TortureClient, text_of

_EXIT: Final = 5.0
"""Seconds within which a server must exit."""
_PROGRESS: Final = {"progressToken": "torture"}
_ELICITATION: Final[JSONObject] = {"method": "elicitation/create"}


# Cancellation


async def cancel_stops_handler(client: TortureClient) -> None:
    await client.stop([await client.start_slow()])


async def cancel_no_response(client: TortureClient) -> None:
    call = await client.start_slow()
    await client.cancel(call)
    await client.drain(QUIET)
    if late := [message for message in client.received(id=call) if "method" not in message]:
        raise Failed(f"the server sent {len(late)} responses after the cancellation. The first is {str(late[0])[:150]}")


cancel_no_response_legacy = cancel_no_response


async def cancel_no_progress(client: TortureClient) -> None:
    call = await client.start_slow(meta=_PROGRESS)
    await client.drain(0.3)
    if not client.progress_of("torture"):
        raise Skipped("the tool `slow` reports no progress")
    await client.stop([call])
    await _check_no_more_progress(client, QUIET, "the end of the handler")


async def _check_no_more_progress(client: TortureClient, seconds: float, after: str) -> None:
    before = len(client.progress_of("torture"))
    await client.drain(seconds)
    if late := len(client.progress_of("torture")) - before:
        raise Failed(f"the server sent {late} progress notifications after {after}")


async def cancel_at_once(client: TortureClient) -> None:
    await client.stop([await client.call("slow")])
    await client.check_alive()


async def cancel_after_response(client: TortureClient) -> None:
    call = await client.call("fast")
    await client.response(call)
    await client.cancel(call)
    await client.check_alive()
    if len(client.received(id=call)) != 1:
        raise Failed("the server answered the request twice")


async def cancel_malformed(client: TortureClient) -> None:
    ids: tuple[Any, ...] = (99_999, "never sent", None, [])
    odd: list[JSONObject] = [{}, {"params": {}}, *({"params": {"requestId": each}} for each in ids)]
    for members in odd:
        await client.send({"method": "notifications/cancelled", **members})
    await client.check_alive()
    _check_no_error(client)


def _check_no_error(client: TortureClient) -> None:
    if answered := client.received(id=None):
        raise Failed(f"the server answered a message that isn't a request: {str(answered[0])[:150]}")


async def cancel_reason(client: TortureClient) -> None:
    for reason in ("x" * 10_000, "\u202e\x00", ""):
        call = await client.start_slow()
        await client.notify("notifications/cancelled", {"requestId": call, "reason": reason})
        await client.until_running(0, PROMPTLY)


async def cancel_500(client: TortureClient) -> None:
    # send fewer requests over HTTP, because each request needs its own connection
    many = 500 if client.outbox is None else 50
    calls = [await client.call("slow") for _ in range(many)]
    with suppress(Failed):  # the server may refuse some of the calls
        await client.until_running(many, 10)
    running = await client.running()
    refused = [message for call in calls for message in client.received(id=call)]
    if len(refused) + running < many:
        raise Failed(f"the server lost calls: of {many} calls, {running} are running and {len(refused)} got a response")
    await client.stop(calls)


async def cancel_one_of_many(client: TortureClient) -> None:
    calls = [await client.start_slow() for _ in range(5)]
    await client.cancel(calls[2])
    await client.until_running(4, PROMPTLY)
    await _check_still_running(client, 4, "the cancellation of one request also stopped other handlers")
    await client.stop(calls)


async def _check_still_running(client: TortureClient, number: int, otherwise: str) -> None:
    await client.drain(QUIET)
    if await client.running() != number:
        raise Failed(otherwise)


async def cancel_id_type(client: TortureClient) -> None:
    call = await client.start_slow(id=70_007)
    await client.cancel("70007")
    await _check_still_running(
        client, 1, "the server stopped request 70007, although only request '70007' was cancelled"
    )
    await client.stop([call])


async def cancel_race(client: TortureClient) -> None:
    for number in range(100):
        call = await client.call("slow" if number % 2 else "fast")
        if number % 3:
            await trio.sleep(0.0005 * (number % 7))
        await client.cancel(call)
    await client.until_running(0, 2 * PROMPTLY)
    await client.check_alive()


async def cancel_initialize(client: TortureClient) -> None:
    await client.cancel(1)
    await client.check_alive()


async def cancel_during_flood(client: TortureClient) -> None:
    call = await client.start_slow()
    await client.call("flood", meta=_PROGRESS)
    await client.cancel(call)
    await client.until_running(0, 3 * PROMPTLY)


async def cancel_withdraws_elicitation(client: TortureClient) -> None:
    call = await client.call("ask")
    elicitation = await client.seen(_ELICITATION, "no elicitation request")
    await client.cancel(call)
    cancel = {"method": "notifications/cancelled", "params": {"requestId": elicitation["id"], ...: ...}}
    await client.seen(cancel, "the server didn't cancel its elicitation request", 2 * PROMPTLY)


# Requests to the client


async def elicitation_answers(client: TortureClient) -> None:
    calls = [await client.call("ask") for _ in range(10)]
    requests = [await client.seen(_ELICITATION, "the server sent fewer than ten elicitation requests") for _ in calls]
    for number, request in enumerate(reversed(requests)):
        await client.answer(request, {"action": "accept", "content": {"value": f"v{number}"}})
    texts = sorted([text_of(await client.response(call)) for call in calls])
    if texts != sorted(f"v{number}" for number in range(10)):
        raise Failed(f"the calls returned {texts} instead of the ten elicited values v0 to v9")


async def elicitation_needs_capability(client: TortureClient) -> None:
    call = await client.call("ask")
    answer = await client.seen({"id": ...}, "the server sent neither a response nor an elicitation request")
    await client.stop([call])
    if answer.get("method") == "elicitation/create" or answer.get("result", {}).get("inputRequests"):
        raise Failed("the server sent an elicitation request to a client that doesn't declare elicitation")


async def elicitation_in_result(client: TortureClient) -> None:
    first = await client.response(await client.call("ask"))
    result = as_object(first.get("result"))
    requests = as_object(result.get("inputRequests"))
    if result.get("resultType") != "input_required" or len(requests) != 1:
        raise Failed(f"the result contains no elicitation request: {str(first)[:200]}")
    answers = {key: {"action": "accept", "content": {"value": "blue"}} for key in requests}
    state = {name: result[name] for name in ("requestState",) if name in result}
    text = text_of(await client.response(await client.call("ask", inputResponses=answers, **state)))
    if text != "blue":
        raise Failed(f"the call returned {text!r} instead of 'blue'")


# Progress and logs


async def _progress_of_slow(client: TortureClient, seconds: float, meta: JSONObject | None) -> None:
    """Call the tool `slow`, receive messages for ``seconds``, and cancel the call."""
    call = await client.start_slow(meta=meta)
    await client.drain(seconds)
    await client.cancel(call)


async def progress_token_type(client: TortureClient) -> None:
    for token in (0, -1, "", "0", 2**53 - 1):
        async with client.under_test.opened() as other:
            await _progress_of_slow(other, 0.4, {"progressToken": token})
            if not other.progress_of(token):
                raise Failed(f"the server sent no progress notification with the token {token!r}")


async def progress_only_with_token(client: TortureClient) -> None:
    await _progress_of_slow(client, 0.4, None)
    if client.received(method="notifications/progress"):
        raise Failed("the server sent progress notifications for a request without a progress token")


async def progress_increases(client: TortureClient) -> None:
    await _progress_of_slow(client, 0.6, _PROGRESS)
    values = client.progress_of("torture")
    if len(values) < 2:
        raise Skipped("the tool `slow` reports fewer than two progress values")
    if any(late <= early for early, late in pairwise(values)):
        raise Failed(f"the progress values don't increase: {values[:10]}")


async def progress_rate(client: TortureClient) -> None:
    await client.response(await client.call("flood", meta=_PROGRESS), 20 * PROMPTLY)
    values = client.progress_of("torture")
    if len(values) > 200:
        raise Failed(f"the server sent {len(values)} progress notifications, more than 200")
    if not values or values[-1] < 10_000:
        raise Failed(f"the last progress value is {values[-1] if values else None}, not 10000")


async def progress_before_response(client: TortureClient) -> None:
    await client.response(await client.call("flood", meta=_PROGRESS), 20 * PROMPTLY)
    await _check_no_more_progress(client, 0.5, "the response")


def _check_levels(client: TortureClient) -> None:
    """Check that the server has sent log messages of the level error and above, and no messages below that level."""
    levels = {message["params"]["level"] for message in client.received(method="notifications/message")}
    if levels & {"debug", "info", "notice", "warning"} or not levels >= {"error", "critical"}:
        raise Failed(
            f"expected all log messages of level error and above, and no others, but got levels {sorted(levels)}"
        )


async def log_level(client: TortureClient) -> None:
    answer = await client.response(await client.request("logging/setLevel", {"level": "error"}))
    if "error" in answer:
        raise Skipped("the server has no logging capability")
    await client.response(await client.call("logs"))
    _check_levels(client)


async def log_on_request(client: TortureClient) -> None:
    await client.response(await client.call("logs"))
    if client.received(method="notifications/message"):
        raise Failed("the server sent log messages for a request without `logLevel`")


async def log_level_of_request(client: TortureClient) -> None:
    await client.response(await client.call("logs", meta={"io.modelcontextprotocol/logLevel": "error"}))
    _check_levels(client)


# Load


async def answers_while_busy(client: TortureClient) -> None:
    calls = [await client.start_slow() for _ in range(10)]
    await client.check_alive(PROMPTLY)
    if client.under_test.era == "legacy":
        await client.response(await client.request("ping"), PROMPTLY)
    await client.stop(calls)


async def slow_reader(client: TortureClient) -> None:
    flood = await client.call("flood", meta=_PROGRESS)
    await trio.sleep(2)
    await client.response(flood, 20 * PROMPTLY)
    await client.check_alive()


async def ids_of_all_kinds(client: TortureClient) -> None:
    ids: Sequence[RequestId] = ("a", "", "7", 2**53 - 1, -3, 0)
    for each in ids:
        answer = await client.response(await client.call("fast", id=each))
        if type(answer["id"]) is not type(each):
            raise Failed(f"the response to request {each!r} must have this id, not {answer['id']!r}")


# Malformed messages


def _sends(line: bytes, error_code: int | None = None) -> Callable[[TortureClient], Awaitable[None]]:
    """Return a scenario that sends ``line`` to the server, and checks that the server still works.

    With ``error_code``, the server must also answer the line with this error.
    """

    async def send(client: TortureClient) -> None:
        await client.send(line)
        if error_code is not None:
            pattern = {"error": {"code": error_code, ...: ...}}
            await client.seen(pattern, f"no error {error_code}", 2 * PROMPTLY)
        await client.check_alive()

    return send


_DEPTH: Final = 100_000

line_not_json = _sends(b"this is not JSON")
line_not_json_error = _sends(b'{"jsonrpc": "2.0", "id": 1, "method"', -32700)
line_no_utf8 = _sends(b'{"jsonrpc": "2.0", "method": "\xff\xfe"}')
line_deep = _sends(b'{"jsonrpc": "2.0", "method": "x", "params": ' + b"[" * _DEPTH + b"]" * _DEPTH + b"}")
line_long = _sends(b'{"jsonrpc": "2.0", "method": "x", "params": {"text": "' + b"x" * 2**22 + b'"}}')
request_invalid = _sends(b'{"jsonrpc": "2.0", "id": 7070, "method": 7}', -32600)


async def method_unknown(client: TortureClient) -> None:
    answer = await client.response(await client.request("torture/unknown"))
    if answer.get("error", {}).get("code") != -32601:
        raise Failed(f"the server must respond with error -32601, not {str(answer)[:200]}")


async def odd_messages(client: TortureClient) -> None:
    await client.notify("notifications/torture", {"a": 1})
    await client.send({"id": 424_242, "result": {}})
    await client.check_alive()
    _check_no_error(client)


# How processes and connections end


async def _check_exit_at_end_of_input(client: TortureClient) -> None:
    await client.process.aclose()
    await client.check_exit(_EXIT)


async def exit_idle(client: TortureClient) -> None:
    await client.check_alive()
    await _check_exit_at_end_of_input(client)


async def exit_busy(client: TortureClient) -> None:
    for _ in range(3):
        await client.start_slow()
    await _check_exit_at_end_of_input(client)


async def exit_unread(client: TortureClient) -> None:
    await client.call("flood", meta={"progressToken": 1})
    await _check_exit_at_end_of_input(client)


async def exit_sigterm(client: TortureClient) -> None:
    await client.start_slow()
    os.kill(client.process.pid, signal.SIGTERM)
    await client.check_exit(_EXIT)


async def cancel_process_tree(client: TortureClient) -> None:
    call = await client.call("spawn")
    await client.drain(QUIET)
    await client.cancel(call)
    await client.drain(QUIET)
    await _check_exit_at_end_of_input(client)


async def exit_process_tree(client: TortureClient) -> None:
    await client.call("spawn")
    await client.drain(QUIET)
    await _check_exit_at_end_of_input(client)


async def http_disconnect_modern(watching: TortureClient) -> None:
    async with watching.under_test.opened() as leaving:
        await leaving.call("slow")
        await watching.until_running(1)
    await watching.until_running(0, PROMPTLY)


async def http_disconnect_legacy(watching: TortureClient) -> None:
    streams: list[trio.SocketStream] = []

    async def dial(host: str, port: int) -> trio.SocketStream:
        streams.append(await trio.open_tcp_stream(host, port))
        return streams[-1]

    under_test = watching.under_test
    async with evolve(under_test, target=evolve(under_test.target, dial=dial)).opened() as leaving:
        call = await leaving.call("slow")
        await watching.until_running(1)
        for stream in streams:
            stream.socket.shutdown(trio.socket.SHUT_RDWR)
        await _check_still_running(watching, 1, "the server stopped the handler because its client disconnected")
        await leaving.cancel(call)
        await watching.until_running(0)


async def http_sessions_apart(one: TortureClient) -> None:
    async with one.under_test.opened() as other:
        call = await one.start_slow(id=7171)
        await other.cancel(7171)
        await _check_still_running(one, 1, "the server stopped the request of the other client")
        await one.cancel(call)


SERVER_SCENARIOS: Final = load_scenarios("server", vars())
