"""What a legacy server asks of its client: answered, refused or cancelled, and never left in silence."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, Serve, cancels_in, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp import (
    CodedError,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    Limits,
    Root,
    TextContent,
)
from trio_mcp.client.opening import open_client

SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
URL = {"mode": "url", "message": "go", "url": "https://example.com", "elicitationId": "e1"}
SAMPLED = CreateMessageResult("assistant", TextContent("hello"), "model")


def asks(*questions: tuple[str, Any]) -> Any:
    """A script that sends these requests, one after another, and awaits the reply to each."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number, (method, params) in enumerate(questions):
            await peer.request(f"q{number}", method, params)
            await peer.read()

    return script


async def _replies(*questions: tuple[str, Any], **options: Any) -> list[dict[str, Any]]:
    async with scripted(asks(*questions)) as (channel, peer), open_client(channel, **options):
        await trio.sleep(10)
    return [message for message in peer.wire if "method" not in message]


# What was declared


async def sampling(params: CreateMessageParams) -> CreateMessageResult:
    assert params.max_tokens == 10
    return SAMPLED


async def test_sampling_is_answered_by_its_handler(autojump_clock: object) -> None:
    [reply] = await _replies(("sampling/createMessage", SAMPLE), sampling=sampling)
    assert reply == {
        "jsonrpc": "2.0",
        "id": "q0",
        "result": {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "model"},
    }


async def test_a_plain_def_handler_answers_from_a_thread_of_its_own(serve_raw: Serve) -> None:
    raw = serve_raw(f'handshake(); request("q", "sampling/createMessage", {SAMPLE}); read(); note("over")')
    threads: list[int] = []

    def in_thread(_: CreateMessageParams) -> CreateMessageResult:
        threads.append(threading.get_ident())
        return SAMPLED

    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", sampling=in_thread):
            await raw.has("over")
    assert raw.wire[-1]["result"]["model"] == "model"
    assert threads != [threading.get_ident()]


async def test_a_plain_dict_is_an_accepted_form(autojump_clock: object) -> None:
    async def elicit(params: ElicitFormParams) -> dict[str, Any]:
        assert params.message == "who?"
        return {"name": "Ann"}

    [reply] = await _replies(("elicitation/create", FORM), elicitation=elicit)
    assert reply["result"] == {"action": "accept", "content": {"name": "Ann"}}


LUNCH = {
    "type": "object",
    "properties": {
        "dish": {"type": "string", "default": "soup"},
        "spoons": {"type": "integer", "default": 1},
        "warm": {"type": "boolean", "default": True},
        "sides": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a"]},
        "name": {"type": "string"},
        "odd": {"type": "string", "default": {"not": "a value of a form"}},
    },
}
DEFAULTS = {"dish": "soup", "spoons": 1, "warm": True, "sides": ["a"]}


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ({}, DEFAULTS),
        ({"dish": "", "warm": False, "name": "Ann"}, DEFAULTS | {"dish": "", "warm": False, "name": "Ann"}),
        (ElicitResult("accept"), DEFAULTS),
        (ElicitResult("accept", {"spoons": 0}), DEFAULTS | {"spoons": 0}),
        (ElicitResult("decline"), None),
        (ElicitResult("cancel"), None),
    ],
    ids=["dict", "explicit", "accept", "accept-explicit", "decline", "cancel"],
)
async def test_fields_left_out_of_an_accepted_form_get_their_defaults(
    autojump_clock: object, answer: Any, content: Any
) -> None:
    async def elicit(_: ElicitFormParams) -> Any:
        return answer

    question = {"message": "lunch?", "requestedSchema": LUNCH}
    [reply] = await _replies(("elicitation/create", question), elicitation=elicit)
    assert reply["result"].get("content") == content


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"properties": {"a": []}}], ids=repr)
async def test_a_schema_that_is_no_form_has_no_defaults(autojump_clock: object, schema: Any) -> None:
    async def elicit(_: ElicitFormParams) -> dict[str, Any]:
        return {"a": "b"}

    question = {"message": "?", "requestedSchema": schema}
    [reply] = await _replies(("elicitation/create", question), elicitation=elicit)
    assert reply["result"]["content"] == {"a": "b"}


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        ("sampling", ("sampling/createMessage", SAMPLE)),
        ("elicitation", ("elicitation/create", FORM)),
        ("elicitation_url", ("elicitation/create", URL)),
    ],
)
async def test_a_handler_that_returns_nothing_has_accepted_nothing(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, kind: str, question: Any
) -> None:
    async def forgetful(_: object) -> Any:
        return None

    [reply] = await _replies(question, **{kind: forgetful})
    assert reply["error"] == {"code": -32603, "message": "Internal error"}
    assert "not NoneType" in caplog.text


@pytest.mark.parametrize("member", [{"tools": []}, {"toolChoice": {"mode": "none"}}], ids=["tools", "toolChoice"])
@pytest.mark.parametrize("declared", [True, False])
async def test_sampling_with_tools_is_refused_unless_it_was_declared(
    autojump_clock: object, member: Any, declared: bool
) -> None:
    question = ("sampling/createMessage", {**SAMPLE, **member})
    [reply] = await _replies(question, sampling=sampling, sampling_tools=declared)
    assert "result" in reply if declared else reply["error"]["code"] == -32602


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_say_no(autojump_clock: object, action: Any) -> None:
    async def elicit(_: ElicitFormParams) -> ElicitResult:
        return ElicitResult(action)

    [reply] = await _replies(("elicitation/create", FORM), elicitation=elicit)
    assert reply["result"] == {"action": action}


async def test_a_url_goes_to_its_own_handler(autojump_clock: object) -> None:
    async def visit(params: ElicitURLParams) -> ElicitResult:
        assert params.url == "https://example.com"
        return ElicitResult("accept")

    [reply] = await _replies(("elicitation/create", URL), elicitation_url=visit)
    assert reply["result"]["action"] == "accept"


@pytest.mark.parametrize("kind", ["list", "function"])
async def test_roots_are_a_list_or_what_gives_one(autojump_clock: object, kind: str) -> None:
    roots = [Root("file:///a"), Root("file:///b", name="b")]

    async def give() -> list[Root]:
        return roots

    [reply] = await _replies(("roots/list", None), roots=roots if kind == "list" else give)
    assert reply["result"] == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]}


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, {}),
        ({"sampling": sampling}, {"sampling": {}}),
        ({"sampling": sampling, "sampling_tools": True}, {"sampling": {"tools": {}}}),
        ({"elicitation": sampling}, {"elicitation": {"form": {}}}),
        ({"elicitation_url": sampling}, {"elicitation": {"url": {}}}),
        ({"roots": []}, {"roots": {"listChanged": True}}),
    ],
)
async def test_exactly_what_there_are_handlers_for_is_declared(
    autojump_clock: object, options: Any, declared: Any
) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel, era="legacy", **options):
        pass
    assert peer.wire[0]["params"]["capabilities"] == declared


# What was not


UNDECLARED: list[tuple[str, Any, dict[str, Any], int]] = [
    ("sampling/createMessage", SAMPLE, {}, -32601),
    ("roots/list", None, {}, -32601),
    ("elicitation/create", FORM, {}, -32601),
    ("elicitation/create", URL, {}, -32601),
    ("elicitation/create", URL, {"elicitation": sampling}, -32602),
    ("elicitation/create", FORM, {"elicitation_url": sampling}, -32602),
    ("elicitation/create", {"mode": "telepathy"}, {"elicitation": sampling}, -32602),
]


@pytest.mark.parametrize(("method", "params", "options", "code"), UNDECLARED)
async def test_s2c_06_what_was_not_declared_is_an_error_and_never_silence(
    autojump_clock: object, method: str, params: Any, options: Any, code: int
) -> None:
    [reply] = await _replies((method, params), **options)
    assert (reply["id"], reply["error"]["code"]) == ("q0", code)


@pytest.mark.parametrize(("method", "params", "options", "code"), UNDECLARED)
async def test_s2c_06_in_another_process(
    serve_raw: Serve, method: str, params: Any, options: dict[str, Any], code: int
) -> None:
    raw = serve_raw(f'handshake(); request("q", {method!r}, {params!r}); read(); note("over")')
    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", **options):
            await raw.has("over")
    assert (raw.wire[-1]["id"], raw.wire[-1]["error"]["code"]) == ("q", code)


@pytest.mark.parametrize("method", ["nobody/knows", "tools/call", "tools/list", "initialize", "server/discover", ""])
async def test_rpc_06_a_request_that_is_none_of_ours_is_method_not_found(autojump_clock: object, method: str) -> None:
    refused, pong = await _replies((method, {}), ("ping", None))
    assert refused["error"]["code"] == -32601
    assert pong == {"jsonrpc": "2.0", "id": "q1", "result": {}}


async def test_rpc_06_requests_in_another_process(serve_raw: Serve) -> None:
    raw = serve_raw(
        """
        handshake()
        for method in ("nobody/knows", "tools/call", "initialize", "server/discover", ""):
            request(method, method, {}); read()
        request("p", "ping"); read(); note("over")
        """
    )
    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy"):
            await raw.has("over")
    *refused, pong = (message for message in raw.wire if "method" not in message)
    assert [message["error"]["code"] for message in refused] == [-32601] * 5
    assert (pong["id"], pong["result"]) == ("p", {})


@pytest.mark.parametrize("params", [None, {}, {"messages": 5, "maxTokens": 1}, {"messages": [], "maxTokens": "x"}])
async def test_bad_params_are_refused_without_asking_anybody(autojump_clock: object, params: Any) -> None:
    asked: list[Any] = []
    [reply] = await _replies(("sampling/createMessage", params), sampling=asked.append)
    assert reply["error"]["code"] == -32602
    assert asked == []


@pytest.mark.parametrize("request_id", ["null", "true", "1.5", "[]", "{}"])
async def test_a_request_without_a_usable_id_is_refused_once(autojump_clock: object, request_id: str) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.write('{"jsonrpc":"2.0","id":%s,"method":"ping"}' % request_id)  # noqa: UP031 - braces
        await peer.request("p", "ping")

    async with scripted(script) as (channel, peer), open_client(channel):
        await trio.sleep(1)
    refused, pong = (message for message in peer.wire if "method" not in message)
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert pong["id"] == "p"


async def test_an_error_of_the_handler_that_is_meant_for_the_peer_travels(autojump_clock: object) -> None:
    async def reject(_: CreateMessageParams) -> CreateMessageResult:
        raise CodedError(-1, "User rejected sampling request")

    [reply] = await _replies(("sampling/createMessage", SAMPLE), sampling=reject)
    assert reply["error"] == {"code": -1, "message": "User rejected sampling request"}


async def test_what_the_handler_did_not_foresee_is_answered_without_its_text(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: CreateMessageParams) -> CreateMessageResult:
        raise ValueError("password=swordfish")

    failed, pong = await _replies(("sampling/createMessage", SAMPLE), ("ping", None), sampling=fail)
    assert failed["error"]["code"] == -32603
    assert "swordfish" not in str(failed)
    assert "result" in pong
    assert "swordfish" in caplog.text
    caplog.clear()


async def test_a_modern_server_that_sends_requests_gets_no_reply(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        call = await peer.until("tools/call")
        await peer.request(1, "roots/list")
        await peer.request("x", "ping")
        await peer.text(call)

    async with scripted(script) as (channel, peer), open_client(channel, roots=[]) as client:
        assert text_of(await client.call_tool("any")) == "done"
    assert all("method" in message for message in peer.wire)
    caplog.clear()


# While a handler runs


async def test_s2c_08_a_ping_is_answered_while_an_async_handler_runs(autojump_clock: object) -> None:
    answered_at: list[float] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        begun = trio.current_time()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await peer.request("p", "ping")
        while len(answered_at) < 2:
            await peer.read()
            answered_at.append(trio.current_time() - begun)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(5)
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow):
        await trio.sleep(10)
    assert [message["id"] for message in peer.wire if "method" not in message] == ["p", "s"]
    assert answered_at == [pytest.approx(0), pytest.approx(5)]


@pytest.mark.parametrize("kind", ["async", "plain def"])
async def test_s2c_08_a_ping_is_answered_while_a_handler_runs_in_another_process(serve_raw: Serve, kind: str) -> None:
    raw = serve_raw(
        f"""
        handshake()
        request("s", "sampling/createMessage", {SAMPLE})
        request("p", "ping")
        read(); note("first answer")
        read(); note("second answer")
        """,
    )
    release, released = threading.Event(), trio.Event()

    def block(_: CreateMessageParams) -> CreateMessageResult:
        assert release.wait(10)
        return SAMPLED

    async def wait(_: CreateMessageParams) -> CreateMessageResult:
        await released.wait()
        return SAMPLED

    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", sampling=wait if kind == "async" else block):
            await raw.has("first answer")
            release.set()
            released.set()
            await raw.has("second answer")
    assert [message["id"] for message in raw.wire if "method" not in message] == ["p", "s"]


async def test_many_questions_at_once_are_answered_side_by_side(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number in range(20):
            await peer.request(number, "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(1)
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow):
        await trio.sleep(1.5)
    assert sorted(message["id"] for message in peer.wire if "result" in message) == list(range(20))


async def test_questions_beyond_the_bounds_get_a_clear_error(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number in range(4):
            await peer.request(number, "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(1)
        return SAMPLED

    limits = Limits(max_in_flight=2, max_queued=1)
    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow, limits=limits):
        await trio.sleep(5)
    refused = [message for message in peer.wire if "error" in message]
    assert [message["id"] for message in refused] == [3]
    assert "busy" in refused[0]["error"]["message"]
    assert sorted(message["id"] for message in peer.wire if "result" in message) == [0, 1, 2]


async def test_a_question_the_server_cancels_ends_its_handler_and_is_never_answered(autojump_clock: object) -> None:
    events: list[str] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await trio.sleep(1)
        await peer.notify("notifications/cancelled", {"requestId": "s", "reason": "changed my mind"})
        await peer.request("p", "ping")

    async def stubborn(_: CreateMessageParams) -> CreateMessageResult:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            events.append(cancelled.reason or "")
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=stubborn):
        await trio.sleep(10)
    assert events == ["changed my mind"]
    assert [message["id"] for message in peer.wire if "method" not in message] == ["p"]


async def test_the_calls_of_a_cancelled_handler_are_cancelled_with_the_same_reason(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await peer.until("tools/call")
        await peer.notify("notifications/cancelled", {"requestId": "s", "reason": "changed my mind"})

    async def nested(_: CreateMessageParams) -> CreateMessageResult:
        await client.call_tool("lookup")
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=nested) as client:
        await trio.sleep(10)
    [call] = [message for message in peer.wire if message.get("method") == "tools/call"]
    assert peer.wire[-1]["params"] == {"requestId": call["id"], "reason": "changed my mind"}
    assert cancels_in(peer.wire) == [call["id"]]


async def test_a_handler_that_runs_while_the_client_is_left_is_cancelled(autojump_clock: object) -> None:
    events: list[str] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        try:
            await trio.sleep_forever()
        finally:
            events.append("finally")
        return SAMPLED

    async with scripted(script) as (channel, _), open_client(channel, sampling=slow):
        await trio.sleep(1)
    assert events == ["finally"]


async def test_the_server_is_told_when_roots_change(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("notifications/roots/list_changed")
        await peer.request("r", "roots/list")

    async with scripted(script) as (channel, peer), open_client(channel, roots=[Root("file:///a")]) as client:
        await client.roots_changed()
        await trio.sleep(1)
    assert peer.wire[-1]["result"] == {"roots": [{"uri": "file:///a"}]}
