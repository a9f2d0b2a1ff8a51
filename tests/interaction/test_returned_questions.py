"""Input requests that a handler returns are validated like requests that it sends: MR-10, EL-04, EL-05, EL-14."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from trio_mcp import InputRequired, RequestContext, Server
from trio_mcp.types import (
    CreateMessageParams,
    ElicitFormParams,
    ElicitURLParams,
    InputRequest,
    SamplingMessage,
    TextContent,
)

from .asking import TOOL
from .conversation import ANSWERS
from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, connected
from .rounds import ALL, NAME, ask

HELLO = [SamplingMessage("user", TextContent("hi"))]
WITH_TOOLS = CreateMessageParams(HELLO, 5, tools=[TOOL])
WEB = "https://example.org/"
MANY = {"type": "object", "properties": {"winds": {"type": "array", "items": {"type": "string", "enum": ["n"]}}}}
NESTED = {"type": "object", "properties": {"inner": {"type": "object", "properties": {}}}}
EACH_ERA = pytest.mark.parametrize("revision", [MODERN, LATEST_LEGACY])


def returning(*questions: Any, state: str = "") -> Server:
    """A server whose tool ``order`` asks these questions, and nothing in the second round."""
    server = Server("s")

    @server.tool
    async def order(ctx: RequestContext) -> Any:
        if ctx.is_resubmit:
            return ", ".join(ctx.input_responses)
        return InputRequired({str(number): asked for number, asked in enumerate(questions)}, state)

    return server


BAD: dict[str, Any] = {
    "script": ElicitURLParams("go", "javascript:alert(1)", "e"),
    "relative": ElicitURLParams("go", "/login", "e"),
    "escape in the URL": ElicitURLParams("go", "https://example.org/\x1b[2J", "e"),
    "NUL in the URL": ElicitURLParams("go", "https://example.org/\0", "e"),
    "turned URL": ElicitURLParams("go", "https://example.org/\u202egro.live", "e"),
    "backslash": ElicitURLParams("go", "https://bad.example\\@example.org/", "e"),
    "no id": ElicitURLParams("go", WEB, ""),
    "blank id": ElicitURLParams("go", WEB, " "),
    "control in the id": ElicitURLParams("go", WEB, "e\n"),
    "control in the message": ElicitURLParams("\x1b]0;mine\x07go", WEB, "e"),
    "nested form": ElicitFormParams("name?", NESTED),
    "no form": ElicitFormParams("name?", {"type": "string"}),
    "raw script": InputRequest(
        "elicitation/create", {"mode": "url", "message": "go", "url": "javascript:alert(1)", "elicitationId": "e"}
    ),
    "raw id": InputRequest("elicitation/create", {"mode": "url", "message": "go", "url": WEB, "elicitationId": ""}),
    "raw nested form": InputRequest("elicitation/create", {"message": "name?", "requestedSchema": NESTED}),
}


@EACH_ERA
@pytest.mark.parametrize("asked", BAD.values(), ids=BAD.keys())
async def test_invalid_elicitation_in_input_required_causes_an_error_and_is_not_sent(
    autojump_clock: MockClock, revision: str, asked: Any
) -> None:
    async with connected(returning(asked, ElicitFormParams("fine", NAME)), revision, ALL) as peer:
        assert (await peer.error("order"))["code"] == -32602
        assert not [message for message in peer.messages if message.get("method") == "elicitation/create"]


@EACH_ERA
async def test_elicitation_message_may_contain_line_breaks(autojump_clock: MockClock, revision: str) -> None:
    async with connected(returning(ElicitURLParams("one\r\n\ttwo", WEB, "e")), revision, ALL) as peer:
        if revision == MODERN:
            _, result = await ask(peer, "order")
            assert result["inputRequests"]["0"]["params"]["message"] == "one\r\n\ttwo"
        else:
            await peer.start("order")
            assert (await peer.question("elicitation/create"))["params"]["message"] == "one\r\n\ttwo"


@EACH_ERA
@pytest.mark.parametrize("state", ["", "mine"])
async def test_error_for_input_required_without_supported_requests_names_all_missing_capabilities(
    autojump_clock: MockClock, revision: str, state: str
) -> None:
    questions = (WITH_TOOLS, ElicitURLParams("go", WEB, "e"), InputRequest("roots/list"))
    async with connected(returning(*questions, state=state), revision, {"elicitation": {}}) as peer:
        error = await peer.error("order")
    for capability in ("sampling.tools", "elicitation.url", "roots"):
        assert repr(capability) in error["message"]
    if revision == MODERN:
        assert error["code"] == -32021
        assert error["data"] == {
            "requiredCapabilities": {"sampling": {"tools": {}}, "elicitation": {"url": {}}, "roots": {}}
        }
    else:
        assert error["code"] == -32600
        assert "data" not in error


@pytest.mark.parametrize("revision", LEGACY[:3])
async def test_input_requests_that_a_revision_lacks_are_omitted_if_other_requests_remain(
    autojump_clock: MockClock, revision: str
) -> None:
    questions = (
        WITH_TOOLS,
        ElicitURLParams("go", WEB, "e"),
        ElicitFormParams("winds?", MANY),
        InputRequest("roots/list"),
    )
    declared = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
    async with connected(returning(*questions), revision, declared) as peer:
        call = await peer.start("order")
        await peer.answer(await peer.question("roots/list"), ANSWERS["roots/list"])
        assert (await peer.reply(call))["result"]["content"][0]["text"] == "3"
        assert {message.get("method") for message in peer.messages} == {None, "roots/list"}


UNSAID: dict[str, Any] = {
    "tools": WITH_TOOLS,
    "raw tools": InputRequest("sampling/createMessage", {"messages": [], "maxTokens": 1, "toolChoice": {}}),
    "URL": ElicitURLParams("go", WEB, "e"),
    "list of choices": ElicitFormParams("winds?", MANY),
}


@pytest.mark.parametrize("asked", UNSAID.values(), ids=UNSAID.keys())
async def test_input_required_with_only_requests_that_the_revision_lacks_fails_the_call(
    autojump_clock: MockClock, asked: Any
) -> None:
    declared = {"sampling": {"tools": {}}, "elicitation": {"url": {}}}
    async with connected(returning(asked, state="s"), "2025-06-18", declared) as peer:
        error = await peer.error("order")
    assert error["code"] in (-32600, -32602)
    assert "2025-06-18" in error["message"]
    assert "Params" not in error["message"], "classes of ours are nobody's business"


async def test_input_required_for_a_stateless_legacy_client_raises_and_advises_stateful_serving(
    autojump_clock: MockClock,
) -> None:
    async with connected(returning(InputRequest("roots/list")), LATEST_LEGACY, ALL, stateless=True) as peer:
        error = await peer.error("order")
    assert error["code"] == -32603
    assert "serve it without stateless=True" in error["message"]
    assert "replay" not in error["message"]
