"""Requests of a legacy server to its client: each is answered, refused or cancelled."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from tests.interaction.client.asking import FORM, SAMPLE, SAMPLED, URL, replies
from tests.interaction.client.raw import RawPeer, Serve, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp import CodedError
from trio_mcp.client.opening import open_client
from trio_mcp.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitURLParams,
    Root,
)

# What was declared


async def sampling(params: CreateMessageParams) -> CreateMessageResult:
    assert params.max_tokens == 10
    return SAMPLED


async def test_sampling_request_is_answered_by_sampling_handler(autojump_clock: object) -> None:
    [reply] = await replies(("sampling/createMessage", SAMPLE), sampling=sampling)
    assert reply == {
        "jsonrpc": "2.0",
        "id": "q0",
        "result": {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "model"},
    }


async def test_sync_sampling_handler_runs_in_a_worker_thread(serve_raw: Serve) -> None:
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


async def test_dict_returned_by_an_elicitation_handler_is_sent_as_an_accepted_form(autojump_clock: object) -> None:
    async def elicit(params: ElicitFormParams) -> dict[str, Any]:
        assert params.message == "who?"
        return {"name": "Ann"}

    [reply] = await replies(("elicitation/create", FORM), elicitation=elicit)
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
async def test_accepted_elicitation_form_gets_the_schema_defaults_for_omitted_fields(
    autojump_clock: object, answer: Any, content: Any
) -> None:
    async def elicit(_: ElicitFormParams) -> Any:
        return answer

    question = {"message": "lunch?", "requestedSchema": LUNCH}
    [reply] = await replies(("elicitation/create", question), elicitation=elicit)
    assert reply["result"].get("content") == content


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"properties": {"a": []}}], ids=repr)
async def test_elicitation_answer_gets_no_defaults_if_the_requested_schema_is_not_a_form_schema(
    autojump_clock: object, schema: Any
) -> None:
    async def elicit(_: ElicitFormParams) -> dict[str, Any]:
        return {"a": "b"}

    question = {"message": "?", "requestedSchema": schema}
    [reply] = await replies(("elicitation/create", question), elicitation=elicit)
    assert reply["result"]["content"] == {"a": "b"}


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        ("sampling", ("sampling/createMessage", SAMPLE)),
        ("elicitation", ("elicitation/create", FORM)),
        ("elicitation_url", ("elicitation/create", URL)),
    ],
)
async def test_client_answers_with_internal_error_if_its_handler_for_a_request_of_the_server_returns_none(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, kind: str, question: Any
) -> None:
    async def forgetful(_: object) -> Any:
        return None

    [reply] = await replies(question, **{kind: forgetful})
    assert reply["error"] == {"code": -32603, "message": "Internal error"}
    assert "not NoneType" in caplog.text


@pytest.mark.parametrize("member", [{"tools": []}, {"toolChoice": {"mode": "none"}}], ids=["tools", "toolChoice"])
@pytest.mark.parametrize("declared", [True, False])
async def test_sampling_with_tools_is_refused_if_the_client_did_not_declare_the_capability(
    autojump_clock: object, member: Any, declared: bool
) -> None:
    question = ("sampling/createMessage", {**SAMPLE, **member})
    [reply] = await replies(question, sampling=sampling, sampling_tools=declared)
    assert "result" in reply if declared else reply["error"]["code"] == -32602


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_elicitation_handler_can_answer_with_decline_or_cancel(autojump_clock: object, action: Any) -> None:
    async def elicit(_: ElicitFormParams) -> ElicitResult:
        return ElicitResult(action)

    [reply] = await replies(("elicitation/create", FORM), elicitation=elicit)
    assert reply["result"] == {"action": action}


async def test_url_elicitation_is_answered_by_the_elicitation_url_handler(autojump_clock: object) -> None:
    async def visit(params: ElicitURLParams) -> ElicitResult:
        assert params.url == "https://example.com"
        return ElicitResult("accept")

    [reply] = await replies(("elicitation/create", URL), elicitation_url=visit)
    assert reply["result"]["action"] == "accept"


@pytest.mark.parametrize("kind", ["list", "function"])
async def test_roots_option_of_a_client_can_be_a_list_or_an_async_function(autojump_clock: object, kind: str) -> None:
    roots = [Root("file:///a"), Root("file:///b", name="b")]

    async def give() -> list[Root]:
        return roots

    [reply] = await replies(("roots/list", None), roots=roots if kind == "list" else give)
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
async def test_client_declares_only_the_capabilities_for_which_handlers_are_given(
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
async def test_s2c_06_client_answers_an_undeclared_kind_of_request_of_the_server_with_an_error(
    autojump_clock: object, method: str, params: Any, options: Any, code: int
) -> None:
    [reply] = await replies((method, params), **options)
    assert (reply["id"], reply["error"]["code"]) == ("q0", code)


@pytest.mark.parametrize(("method", "params", "options", "code"), UNDECLARED)
async def test_s2c_06_client_answers_an_undeclared_kind_of_request_of_a_server_process_with_an_error(
    serve_raw: Serve, method: str, params: Any, options: dict[str, Any], code: int
) -> None:
    raw = serve_raw(f'handshake(); request("q", {method!r}, {params!r}); read(); note("over")')
    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", **options):
            await raw.has("over")
    assert (raw.wire[-1]["id"], raw.wire[-1]["error"]["code"]) == ("q", code)


@pytest.mark.parametrize("method", ["nobody/knows", "tools/call", "tools/list", "initialize", "server/discover", ""])
async def test_rpc_06_client_answers_a_request_with_an_unknown_method_with_method_not_found(
    autojump_clock: object, method: str
) -> None:
    refused, pong = await replies((method, {}), ("ping", None))
    assert refused["error"]["code"] == -32601
    assert pong == {"jsonrpc": "2.0", "id": "q1", "result": {}}


async def test_rpc_06_client_answers_unknown_requests_of_a_server_process_with_method_not_found(
    serve_raw: Serve,
) -> None:
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
async def test_client_refuses_a_request_of_the_server_with_invalid_params_without_calling_its_handler(
    autojump_clock: object, params: Any
) -> None:
    asked: list[Any] = []
    [reply] = await replies(("sampling/createMessage", params), sampling=asked.append)
    assert reply["error"]["code"] == -32602
    assert asked == []


@pytest.mark.parametrize("request_id", ["null", "true", "1.5", "[]", "{}"])
async def test_client_does_not_answer_a_request_of_the_server_with_an_invalid_id(
    autojump_clock: object, request_id: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.write('{"jsonrpc":"2.0","id":%s,"method":"ping"}' % request_id)  # noqa: UP031 - braces
        await peer.request("p", "ping")

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        await trio.sleep(1)
        assert client.unreadable_messages == 1
    [pong] = [message for message in peer.wire if "method" not in message]
    assert pong["id"] == "p"


async def test_error_with_a_code_raised_by_a_sampling_handler_is_sent_to_the_server_with_that_code(
    autojump_clock: object,
) -> None:
    async def reject(_: CreateMessageParams) -> CreateMessageResult:
        raise CodedError(-1, "User rejected sampling request")

    [reply] = await replies(("sampling/createMessage", SAMPLE), sampling=reject)
    assert reply["error"] == {"code": -1, "message": "User rejected sampling request"}


async def test_unexpected_exception_in_sampling_handler_is_sent_to_server_without_its_text(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: CreateMessageParams) -> CreateMessageResult:
        raise ValueError("password=swordfish")

    failed, pong = await replies(("sampling/createMessage", SAMPLE), ("ping", None), sampling=fail)
    assert failed["error"]["code"] == -32603
    assert "swordfish" not in str(failed)
    assert "result" in pong
    assert "swordfish" in caplog.text
    caplog.clear()


async def test_client_does_not_reply_if_a_modern_server_sends_a_request(
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
