"""The scenarios for servers: cancellation, disconnects, progress and logs, requests to the client, and malformed
messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, Final, TypeAlias

import trio

from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject, as_object
from .scenarios import Era, Failed, Level, Scenario, Skipped, scenario_of
from .server_under_test import QUIET, ServerUnderTest, TortureClient, text_of

SERVER_SCENARIOS: Final[list[Scenario[ServerUnderTest]]] = []
Play: TypeAlias = Callable[[ServerUnderTest], Awaitable[None]]

_MANY: Final = 500
_MANY_OVER_HTTP: Final = 50
"""Number of concurrent requests over HTTP, where each request takes a connection of its own."""
_PROGRESS: Final = {"progressToken": "torture"}
_ASKING: Final[JSONObject] = {"elicitation": {}}
_BEHAVIOR: Final = "cancellation, Behavior Requirements: servers SHOULD stop processing and free resources"
_NO_RESPONSE: Final = (
    "2025-11-25 cancellation: SHOULD NOT send a response; 2026-07-28 stdio, Cancellation: MUST NOT send any further"
    " messages"
)
_RACES: Final = "cancellation, Timing Considerations: both parties MUST handle these race conditions gracefully"
_INVALID: Final = "cancellation, Error Handling: invalid cancellation notifications SHOULD be ignored"


def scenario(level: Level, clause: str, *, eras: Sequence[Era] = ("legacy", "modern")) -> Callable[[Play], Play]:
    """Return a decorator that registers a function as a scenario: see `scenario_of`."""

    def register(play: Play) -> Play:
        SERVER_SCENARIOS.append(scenario_of(play, level, clause, eras))
        return play

    return register


def connected(
    level: Level, clause: str, *, eras: Sequence[Era] = ("legacy", "modern"), capabilities: JSONObject | None = None
) -> Callable[[Callable[[TortureClient], Awaitable[None]]], object]:
    """Return a decorator that registers a function as a scenario, and gives it a connection of its own."""

    def register(play: Callable[[TortureClient], Awaitable[None]]) -> object:
        @wraps(play)
        async def connect(server: ServerUnderTest) -> None:
            async with server.opened(capabilities) as client:
                await play(client)

        return scenario(level, clause, eras=eras)(connect)

    return register


def _lines_only(server: ServerUnderTest) -> None:
    if server.is_http:
        raise Skipped("over HTTP there are no lines")


async def _cancelled_calls(client: TortureClient, ids: Sequence[RequestId], reason: str | None = None) -> None:
    for each in ids:
        await client.cancel(each, reason)
    await client.until_running(0, within=client.promptly + len(ids) / 100)


def _check_unanswered(client: TortureClient, ids: Sequence[RequestId]) -> None:
    late = [message for each in ids for message in client.received(id=each) if "method" not in message]
    if late:
        raise Failed(f"{len(late)} responses came after the cancel, the first: {str(late[0])[:150]}")


# Cancellation


@connected("SHOULD", _BEHAVIOR)
async def cancel_stops_handler(client: TortureClient) -> None:
    """A cancel stops the handler.

    The work continues, and costs money, after the user has given up.
    """
    await _cancelled_calls(client, [await client.start("slow")])


@connected("MUST", _NO_RESPONSE)
async def cancel_no_response(client: TortureClient) -> None:
    """A cancelled request isn't answered.

    Hosts report an error for a call that the user has cancelled.
    """
    call = await client.start("slow")
    await client.cancel(call)
    await client.drain(QUIET)
    _check_unanswered(client, [call])


@connected("MUST", "progress: notifications MUST stop after completion")
async def cancel_no_progress(client: TortureClient) -> None:
    """No progress follows a cancel.

    Progress bars of cancelled calls move on.
    """
    call = await client.start("slow", meta=_PROGRESS)
    await client.drain(0.3)
    if not client.progress_of("torture"):
        raise Skipped("`slow` reports no progress")
    await _cancelled_calls(client, [call])
    before = len(client.progress_of("torture"))
    await client.drain(QUIET)
    if late := len(client.progress_of("torture")) - before:
        raise Failed(f"{late} progress notifications came after the handler had ended")


@connected("MUST", _RACES)
async def cancel_at_once(client: TortureClient) -> None:
    """A cancel right after its request leaves nothing running.

    A quick double click leaves a handler behind.
    """
    call = await client.call_tool(client.tool("slow"))
    await client.cancel(call)
    await client.until_running(0, within=client.promptly)
    await client.check_alive()


@connected("SHOULD", _INVALID)
async def cancel_after_response(client: TortureClient) -> None:
    """A cancel of a completed request is ignored.

    A cancel that comes too late breaks the connection.
    """
    call = await client.call_tool(client.tool("fast"))
    await client.response(call)
    await client.cancel(call)
    await client.check_alive()
    if len(client.received(id=call)) != 1:
        raise Failed("the request was answered twice")


@connected("SHOULD", _INVALID)
async def cancel_malformed(client: TortureClient) -> None:
    """Malformed cancels, and cancels of unknown requests, are ignored and not answered.

    One odd message of a host ends the session.
    """
    ids: tuple[Any, ...] = (99_999, "never sent", None, [])
    odd: list[JSONObject] = [{}, {"params": {}}, *({"params": {"requestId": each}} for each in ids)]
    for members in odd:
        await client.send({"method": "notifications/cancelled", **members})
    await client.check_alive()
    if answered := [message for message in client.received(id=None) if "method" not in message]:
        raise Failed(f"a notification was answered: {str(answered[0])[:150]}")


@connected("SHOULD", _BEHAVIOR)
async def cancel_reason(client: TortureClient) -> None:
    """A reason of any length, or of a wrong type, doesn't stop the cancel.

    Calls of hosts that send long reasons can't be cancelled.
    """
    for reason in ("x" * 10_000, "\u202e\x00", 7):
        call = await client.start("slow")
        params = {"requestId": call, "reason": reason}
        await client.notify("notifications/cancelled", params)
        await client.until_running(0, within=client.promptly)


@connected("SHOULD", _BEHAVIOR)
async def cancel_500(client: TortureClient) -> None:
    """500 cancels at once (50 over HTTP) stop their handlers within seconds.

    A host that gives up on a batch of calls waits for all of them.
    """
    tool, calls = client.tool("slow"), list[RequestId]()
    many = _MANY if client.outbox is None else _MANY_OVER_HTTP
    client.tool("running")
    for _ in range(many):
        calls.append(await client.call_tool(tool))
    with trio.move_on_after(10):
        while await client.running() < many:  # noqa: ASYNC110, there is no event for handlers of another process
            await trio.sleep(0.1)
    running = await client.running()
    if running < many:
        refused = [message for call in calls for message in client.received(id=call)]
        if len(refused) + running < many:
            raise Failed(f"{running} of {many} calls run, and {len(refused)} were refused; the others do neither")
    await _cancelled_calls(client, calls)


@connected("SHOULD", _BEHAVIOR)
async def cancel_one_of_many(client: TortureClient) -> None:
    """A cancel stops its own request and no other.

    Cancelling one call loses the others.
    """
    calls = [await client.start("slow") for _ in range(5)]
    await client.cancel(calls[2])
    await client.until_running(4, within=client.promptly)
    await client.drain(0.3)
    if await client.running() != 4:
        raise Failed("other handlers ended as well")
    await _cancelled_calls(client, calls)


@connected("MUST", "JSON-RPC 2.0: an id is a string or a number")
async def cancel_id_type(client: TortureClient) -> None:
    """A cancel of "7" doesn't stop request 7.

    Requests of hosts with both kinds of ids are mixed up.
    """
    call = await client.start("slow", id=70_007)
    await client.cancel("70007")
    await client.drain(0.3)
    if await client.running() != 1:
        raise Failed("the request with the number was stopped")
    await _cancelled_calls(client, [call])


@connected("MUST", _RACES)
async def cancel_race(client: TortureClient) -> None:
    """100 cancels that race with responses leave nothing running.

    After a day of use, handlers have piled up.
    """
    for number in range(100):
        call = await client.call_tool(client.tool("slow" if number % 2 else "fast"))
        if number % 3:
            await trio.sleep(0.0005 * (number % 7))
        await client.cancel(call)
    await client.until_running(0, within=2 * client.promptly)
    await client.check_alive()


@connected("MUST", "2025-11-25 cancellation: the initialize request MUST NOT be cancelled by clients", eras=("legacy",))
async def cancel_initialize(client: TortureClient) -> None:
    """A cancel of `initialize` is ignored.

    A confused client gets no connection and no error.
    """
    await client.cancel(1)
    await client.check_alive()


@connected("better", _BEHAVIOR)
async def cancel_during_flood(client: TortureClient) -> None:
    """A cancel is honored while the server floods the client.

    A talkative tool can't be stopped.
    """
    call = await client.start("slow")
    await client.call_tool(client.tool("flood"), meta=_PROGRESS)
    await client.cancel(call)
    await client.until_running(0, within=3 * client.promptly)


@connected(
    "SHOULD",
    "2025-11-25 cancellation: either side can send a cancellation notification; Behavior: free associated resources",
    eras=("legacy",),
    capabilities=_ASKING,
)
async def cancel_own_question(client: TortureClient) -> None:
    """If a call is cancelled, the server withdraws the question that it has asked.

    The user answers a question that no handler waits for.
    """
    call = await client.call_tool(client.tool("ask"))
    question = await client.seen({"method": "elicitation/create", ...: ...}, "no question")
    await client.cancel(call)
    pattern = {"method": "notifications/cancelled", "params": {"requestId": question["id"], ...: ...}, ...: ...}
    await client.seen(pattern, "the question wasn't withdrawn", 2 * client.promptly)


# Questions


@connected("MUST", "JSON-RPC 2.0: a response has the id of its request", eras=("legacy",), capabilities=_ASKING)
async def answers_reach_their_calls(client: TortureClient) -> None:
    """Ten answers in reverse order reach their own calls.

    Users see answers that they gave to another question.
    """
    calls = [await client.call_tool(client.tool("ask")) for _ in range(10)]
    pattern = {"method": "elicitation/create", ...: ...}
    questions = [await client.seen(pattern, "fewer than ten questions") for _ in calls]
    for number, question in enumerate(reversed(questions)):
        await client.answer(question, {"action": "accept", "content": {"value": f"v{number}"}})
    texts = sorted([text_of(await client.response(call)) for call in calls])
    if texts != sorted(f"v{number}" for number in range(10)):
        raise Failed(f"the calls returned {texts}")


@scenario("MUST", "2025-11-25 lifecycle, Operation: both parties MUST only use capabilities that were negotiated")
async def no_capability_no_question(server: ServerUnderTest) -> None:
    """A client without elicitation isn't asked.

    Hosts without a user interface hang.
    """
    async with server.opened() as client:
        answer = await client.response(await client.call_tool(client.tool("ask")))
        if client.received(method="elicitation/create") or answer.get("result", {}).get("inputRequests"):
            raise Failed("the server asked a client without the capability")


@connected("MUST", "2026-07-28 input required", eras=("modern",), capabilities={"elicitation": {"form": {}}})
async def question_in_rounds(client: TortureClient) -> None:
    """A question of the modern era is a result, and the retry gets its answer.

    Hosts of the modern era can't answer.
    """
    asked = await client.response(await client.call_tool(client.tool("ask")))
    result = as_object(asked.get("result"))
    requests = as_object(result.get("inputRequests"))
    if result.get("resultType") != "input_required" or len(requests) != 1:
        raise Failed(f"no question: {str(asked)[:200]}")
    answers = {key: {"action": "accept", "content": {"value": "blue"}} for key in requests}
    params: JSONObject = {"name": client.tool("ask"), "arguments": {}, "inputResponses": answers}
    params |= {"requestState": result["requestState"]} if "requestState" in result else {}
    text = text_of(await client.response(await client.request("tools/call", params)))
    if text != "blue":
        raise Failed(f"the call returned {text!r}")


# Progress and logs


@scenario("MUST", "progress: notifications MUST only reference tokens that were provided in an active request")
async def progress_token_type(server: ServerUnderTest) -> None:
    """Progress has the token of the request, with its JSON type.

    Hosts can't tell whose progress it is.
    """
    for token in (0, -1, "", "0", 9_007_199_254_740_993):
        async with server.opened() as client:
            call = await client.start("slow", meta={"progressToken": token})
            await client.drain(0.4)
            await client.cancel(call)
            if not client.progress_of(token):
                other = [
                    message["params"]["progressToken"] for message in client.received(method="notifications/progress")
                ]
                raise Failed(f"no progress with the token {token!r}; tokens seen: {other[:3]}")


@connected("MUST", "progress: notifications MUST only reference tokens that were provided in an active request")
async def progress_only_with_token(client: TortureClient) -> None:
    """Without a token there is no progress.

    Strict hosts end the connection.
    """
    call = await client.start("slow")
    await client.drain(0.4)
    await client.cancel(call)
    if client.received(method="notifications/progress"):
        raise Failed("progress came without a token")


@connected("MUST", "progress: the value MUST increase with each notification")
async def progress_increases(client: TortureClient) -> None:
    """Progress increases with each notification.

    Progress bars jump back.
    """
    call = await client.start("slow", meta=_PROGRESS)
    await client.drain(0.6)
    await client.cancel(call)
    values = [params["progress"] for params in client.progress_of("torture")]
    if len(values) < 2:
        raise Skipped("`slow` reports less than two values")
    if any(late <= early for early, late in pairwise(values)):
        raise Failed(f"the values were {values[:10]}")


@connected("better", "progress: both parties SHOULD implement rate limiting to prevent flooding")
async def progress_rate(client: TortureClient) -> None:
    """10,000 reports at once arrive as at most 200 notifications, the last value among them.

    Talkative tools freeze the host.
    """
    call = await client.call_tool(client.tool("flood"), meta=_PROGRESS)
    await client.response(call, within=20 * client.promptly)
    values = [params["progress"] for params in client.progress_of("torture")]
    if len(values) > 200:
        raise Failed(f"{len(values)} notifications came")
    if not values or values[-1] < 10_000:
        raise Failed(f"the last value was {values[-1] if values else None}, not 10000")


@connected("MUST", "progress: MUST stop after completion")
async def progress_before_response(client: TortureClient) -> None:
    """No progress follows the response.

    Strict hosts report unknown tokens.
    """
    await client.response(await client.call_tool(client.tool("flood"), meta=_PROGRESS), within=20 * client.promptly)
    before = len(client.progress_of("torture"))
    await client.drain(0.5)
    if late := len(client.progress_of("torture")) - before:
        raise Failed(f"{late} progress notifications came after the response")


@scenario("SHOULD", "2025-11-25 logging, Setting Log Level", eras=("legacy",))
async def log_level(server: ServerUnderTest) -> None:
    """After `logging/setLevel` of error, nothing below error is sent.

    Hosts drown in debug messages.
    """
    async with server.opened() as client:
        tool = client.tool("logs")
        answer = await client.response(await client.request("logging/setLevel", {"level": "error"}))
        if "error" in answer:
            raise Skipped("the server has no logging capability")
        await client.response(await client.call_tool(tool))
        levels = {message["params"]["level"] for message in client.received(method="notifications/message")}
        if low := levels & {"debug", "info", "notice", "warning"}:
            raise Failed(f"messages of the levels {sorted(low)} came")
        if not levels >= {"error", "critical"}:
            raise Failed(f"only messages of the levels {sorted(levels)} came")


@connected(
    "MUST", "2026-07-28 logging: MUST NOT send notifications/message for a request without logLevel", eras=("modern",)
)
async def log_on_request(client: TortureClient) -> None:
    """Without `logLevel` in the request, no log message is sent.

    Hosts get messages that they can't place.
    """
    await client.response(await client.call_tool(client.tool("logs")))
    if client.received(method="notifications/message"):
        raise Failed("log messages came that weren't requested")


@connected("SHOULD", "2026-07-28 logging, Per-request log level", eras=("modern",))
async def log_level_of_request(client: TortureClient) -> None:
    """With `logLevel` of error, errors are sent and nothing below.

    Hosts can't see why a call failed.
    """
    meta = {"io.modelcontextprotocol/logLevel": "error"}
    await client.response(await client.call_tool(client.tool("logs"), meta=meta))
    levels = {message["params"]["level"] for message in client.received(method="notifications/message")}
    if levels & {"debug", "info", "notice", "warning"} or not levels >= {"error", "critical"}:
        raise Failed(f"messages of the levels {sorted(levels)} came")


# Load


@scenario("MUST", "2025-11-25 ping: the receiver MUST respond promptly")
async def answers_while_busy(server: ServerUnderTest) -> None:
    """Other requests are answered while a handler runs.

    One slow call blocks the whole server.
    """
    async with server.opened() as client:
        calls = [await client.start("slow") for _ in range(10)]
        await client.text("fast", within=client.promptly)
        if server.era == "legacy":
            await client.response(await client.request("ping"), within=client.promptly)
        await _cancelled_calls(client, calls)


@connected("better", "no clause: back-pressure")
async def slow_reader(client: TortureClient) -> None:
    """A client that reads nothing for two seconds loses no response.

    Busy hosts lose results or connections.
    """
    flood = await client.call_tool(client.tool("flood"), meta=_PROGRESS)
    await trio.sleep(2)
    await client.response(flood, within=20 * client.promptly)
    await client.check_alive()


@connected("MUST", "JSON-RPC 2.0: the id MUST be the same as in the request")
async def ids_of_all_kinds(client: TortureClient) -> None:
    """Responses have the id of the request, with its JSON type.

    Hosts with string ids get no results.
    """
    for each in ("a", "", "7", 2**53, -3, 0):
        sent = await client.call_tool(client.tool("fast"), id=each)
        answer = await client.response(sent)
        if type(answer["id"]) is not type(each):
            raise Failed(f"the response to {each!r} has the id {answer['id']!r}")


# Sloppy messages


async def _sends(server: ServerUnderTest, data: bytes, code: int | None = None) -> None:
    """Send a line and check that the server still works afterwards. With ``code``, also check that the server answers
    the line with this error."""
    _lines_only(server)
    async with server.opened() as client:
        await client.send(data)
        if code is not None:
            pattern = {"error": {"code": code, ...: ...}, ...: ...}
            await client.seen(pattern, f"no error {code}", 2 * client.promptly)
        await client.check_alive()


@scenario("better", "JSON-RPC 2.0: -32700, Parse error")
async def line_not_json(server: ServerUnderTest) -> None:
    """A line that isn't JSON doesn't end the connection.

    A stray print of a wrapper ends the session.
    """
    await _sends(server, b"this is not JSON")


@scenario("MUST", "JSON-RPC 2.0: -32700, Parse error")
async def line_not_json_error(server: ServerUnderTest) -> None:
    """A line that isn't JSON is answered with -32700.

    Authors of clients don't see what's wrong.
    """
    await _sends(server, b'{"jsonrpc": "2.0", "id": 1, "method"', -32700)


@scenario("better", "transports: messages MUST be UTF-8 encoded")
async def line_no_utf8(server: ServerUnderTest) -> None:
    """A line that isn't UTF-8 doesn't end the connection.

    A file name in another encoding ends the session.
    """
    await _sends(server, b'{"jsonrpc": "2.0", "method": "\xff\xfe"}')


@scenario("better", "no clause: hostile input")
async def line_deep(server: ServerUnderTest) -> None:
    """A line with 100,000 nested arrays doesn't end the connection.

    Any client can end the server.
    """
    await _sends(server, b'{"jsonrpc": "2.0", "method": "x", "params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@scenario("better", "no clause: large messages")
async def line_long(server: ServerUnderTest) -> None:
    """A line of 4 MiB doesn't end the connection.

    Large arguments end the session.
    """
    filler = b"x" * (4 * 1024 * 1024)
    await _sends(
        server, b'{"jsonrpc": "2.0", "method": "notifications/unknown", "params": {"text": "' + filler + b'"}}'
    )


@scenario("MUST", "JSON-RPC 2.0: -32600, Invalid Request")
async def request_invalid(server: ServerUnderTest) -> None:
    """A message that is no request is answered with -32600.

    Authors of clients don't see what's wrong.
    """
    await _sends(server, b'{"jsonrpc": "2.0", "id": 7070, "method": 7}', -32600)


@connected("MUST", "JSON-RPC 2.0: -32601, Method not found")
async def method_unknown(client: TortureClient) -> None:
    """An unknown method is answered with -32601.

    Hosts can't find out what a server offers.
    """
    answer = await client.response(await client.request("torture/unknown"))
    if answer.get("error", {}).get("code") != -32601:
        raise Failed(f"the answer was {str(answer)[:200]}")


@connected("better", "JSON-RPC 2.0: the server MUST NOT reply to a notification; no clause on the others")
async def odd_messages(client: TortureClient) -> None:
    """Unknown notifications, responses to no request, and blank lines are ignored.

    Hosts that are newer than the server lose the connection.
    """
    await client.notify("notifications/torture", {"a": 1})
    await client.send({"id": 424_242, "result": {}})
    await client.check_alive()
    if answered := client.received(id=None):
        raise Failed(f"the answer was {str(answered[0])[:200]}")
