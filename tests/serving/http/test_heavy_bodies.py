"""A body that would take more memory than its caller may take is refused before it is decoded."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
import trio
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import BASE, META, Answer, Connection, message, modern, request_bytes
from tests.serving.http.scenes import SAMPLING, MemoryEndpoint, Scene, call, in_memory, next_message, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import InputRequired, RequestContext
from trio_mcp.jsonrpc.codec import decode
from trio_mcp.serving.http import endpoint as endpoint_module
from trio_mcp.types import CreateMessageParams

MIB = 1024 * 1024
LIMITS: dict[str, Any] = {"max_server_bytes": 16 * MIB, "max_message_bytes": 2 * MIB}
BODY = 300_000
"""Bytes of a body, which become 2 to 20 MiB once decoded."""

UNITS = {
    "lists": b"[0]",
    "empty lists": b"[]",
    "empty objects": b"{}",
    "objects": b'{"a":0}',
    "nested lists": b"[" * 50 + b"]" * 50,
    "nested objects": b'{"a":' * 50 + b"0" + b"}" * 50,
    "numbers": b"0",
    "floats": b"1.5",
    "strings": b'"a"',
    "escapes": b'"\\u1234"',
    "wide characters": '"\N{GRINNING FACE}"'.encode(),
}


def heavy(body: dict[str, Any], unit: bytes = b"[0]", size: int = BODY) -> bytes:
    """Return ``body`` with a list of many ``unit`` for the argument ``a``."""
    body["params"].setdefault("arguments", {})["a"] = []
    text = json.dumps(body).encode()
    return text.replace(b'"a": []', b'"a": [' + b",".join([unit] * (size // (len(unit) + 1))) + b"]")


def of_modern(request_id: Any = 1, name: str = "hold") -> tuple[dict[str, str | None], dict[str, Any]]:
    headers, body = modern("tools/call", {"name": name, "arguments": {}}, request_id)
    return {**headers}, body


class Decoded:
    """Counts the bodies that the endpoint decodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        monkeypatch.setattr(endpoint_module, "decode", self)

    def __call__(self, line: bytes, **options: Any) -> Any:
        self.lengths.append(len(line))
        return decode(line, **options)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return Decoded(monkeypatch)


class Holding(Scene):
    """A server with tools that hold their arguments until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = trio.Event()
        self.running = 0

        @self.server.tool
        async def hold(a: list[Any]) -> int:
            self.running += 1
            await self.may_go_on.wait()
            return len(a)

        @self.server.tool
        async def count(a: list[Any]) -> int:
            return len(a)

        @self.server.tool
        async def ask_about(a: list[list[int]], ctx: RequestContext) -> str:
            self.running += 1
            answer = await ctx.sample(f"{len(a)}?", max_tokens=5)
            return f"{len(a)} {answer.model}"

        @self.server.tool
        async def hold_numbers(a: list[list[int]]) -> int:
            return await hold(a)

        @self.server.tool
        async def hold_objects(a: list[dict[str, int]]) -> int:
            return await hold(a)

        @self.server.tool
        async def ask_again(a: list[dict[str, int]], ctx: RequestContext) -> str | InputRequired:
            if (answer := ctx.input_responses.get("q")) is None:
                a.clear()
                return InputRequired({"q": QUESTION}, "asked")
            return answer["model"]

        @self.server.tool(replay=True)
        async def ask_by_replay(a: list[dict[str, int]], ctx: RequestContext) -> str:
            return (await ctx.sample(f"{len(a)}?", max_tokens=5)).model


QUESTION = CreateMessageParams([], 5)


async def post(endpoint: MemoryEndpoint, headers: dict[str, str | None], body: bytes) -> Connection:
    """Send ``body``, and wait until it is served or refused."""
    connection = await endpoint.connect()
    data = request_bytes("POST", headers, body)
    for at in range(0, len(data), 65536):
        await connection.stream.send_all(data[at : at + 65536])
        await wait_all_tasks_blocked()
    connection.expect()
    return connection


async def asked(endpoint: MemoryEndpoint, headers: dict[str, str | None], body: bytes) -> Answer:
    connection = await post(endpoint, headers, body)
    try:
        return await connection.answer()
    finally:
        await connection.aclose()


async def hold_much(endpoint: MemoryEndpoint, scene: Holding, headers: dict[str, str | None] | None = None) -> None:
    """Have one call run that takes nearly half of the server's bytes."""
    good, body = of_modern("first")
    await post(endpoint, {**good, **(headers or {})}, heavy(body, size=250_000))
    assert scene.running == 1


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
async def test_server_rejects_a_body_that_would_exceed_its_memory_limit_without_decoding_the_body(
    unit: bytes, decoded: Decoded, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        await hold_much(endpoint, scene)
        decoded.lengths.clear()
        headers, body = of_modern(7)
        refused = await asked(endpoint, headers, heavy(body, unit, 3 * BODY))
        assert (refused.status, refused.code, refused.json["id"]) == (503, -31000, 7)
        assert refused.headers["retry-after"].isdigit()
        assert decoded.lengths == []
        assert (await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "small"}})).status == 200
        scene.may_go_on.set()
        await wait_all_tasks_blocked()
        headers, body = of_modern(8, "count")
        assert (await asked(endpoint, headers, heavy(body, unit))).status == 200


async def test_rejected_body_uses_no_more_memory_than_its_text(autojump_clock: MockClock) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        await hold_much(endpoint, scene)
        headers, body = of_modern()
        text = heavy(body, size=3 * BODY)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            assert (await asked(endpoint, headers, text)).status == 503
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - before < 6 * len(text)  # decoded, it takes 25 times as much as its text


@pytest.mark.parametrize("position", ["front", "end", "none"])
async def test_error_for_a_rejected_body_has_the_request_id_found_at_the_beginning_or_end_of_the_body(
    position: str, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        await hold_much(endpoint, scene)
        headers, body = of_modern("named")
        request_id = body.pop("id")
        if position == "front":
            body = {"id": request_id, **body}
        elif position == "end":
            body = {"params": body.pop("params"), **body, "id": request_id}
        refused = await asked(endpoint, headers, heavy(body))
        assert (refused.status, refused.code) == (503, -31000)
        assert refused.json["id"] == (None if position == "none" else "named")


async def test_server_accepts_the_first_body_even_if_it_exceeds_the_memory_limit(autojump_clock: MockClock) -> None:
    async with in_memory(Holding().server, **LIMITS) as endpoint:
        headers, body = of_modern(1, "count")
        assert (await asked(endpoint, headers, heavy(body, size=3 * BODY))).status == 200


async def test_server_estimates_the_memory_of_session_requests_before_decoding(
    decoded: Decoded, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        session = await endpoint.initialize()
        await hold_much(endpoint, scene)
        decoded.lengths.clear()
        refused = await asked(endpoint, session, heavy(call("hold", 5)))
        assert (refused.status, refused.code, refused.json["id"]) == (503, -31000, 5)
        batch = b"[" + heavy(call("hold", 6)) + b"]"
        assert (await asked(endpoint, session, batch)).status == 503
        opening = heavy(message("initialize", {"arguments": {}}, 7))
        assert (await asked(endpoint, {**BASE}, opening)).status == 503
        assert decoded.lengths == []


async def test_sampling_answer_is_accepted_even_if_the_memory_limit_for_bodies_is_exceeded(
    autojump_clock: MockClock,
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        session = await endpoint.initialize(sampling={})
        asking = await endpoint.post(session, call("ask", 1, name="her"))
        await asking.head()
        question = await next_message(asking)
        await hold_much(endpoint, scene)
        content = {"type": "text", "text": "well", "_meta": {"a/b": [[0]] * (BODY // 4)}}
        result = {"model": "m", "role": "assistant", "content": content}
        answer = json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}).encode()
        assert (await asked(endpoint, session, answer)).status == 202
        assert [text_of(reply) for reply in await rest_of(asking)] == ["m has answered"]


async def test_memory_of_a_request_that_awaits_input_is_released_when_the_retry_arrives(
    autojump_clock: MockClock,
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        headers, body = of_modern(1, "ask_about")
        body["params"]["_meta"] = {**META, "io.modelcontextprotocol/clientCapabilities": SAMPLING}
        asking = await asked(endpoint, headers, heavy(body, size=400_000))
        result = asking.json["result"]
        (key,) = result["inputRequests"]
        sampled = {"model": "m", "role": "assistant", "content": {"type": "text", "text": "well"}}
        body["params"] |= {"requestState": result["requestState"], "inputResponses": {key: sampled}}
        assert (await asked(endpoint, headers, heavy(body, size=399_996))).code == -32602  # another request
        answer = await asked(endpoint, headers, heavy(body, size=400_000))
        assert answer.json["result"]["content"][0]["text"] == "100000 m"


@pytest.mark.parametrize("asking", ["ask_again", "ask_by_replay"])
async def test_retry_of_a_large_request_is_accepted_with_equal_arguments_in_another_order(
    asking: str, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        headers, body = of_modern(1, asking)
        body["params"]["_meta"] = {**META, "io.modelcontextprotocol/clientCapabilities": SAMPLING}
        asks = await asked(endpoint, headers, heavy(body, b'{"a":1,"b":2}'))
        result = asks.json["result"]
        sampled = {"model": "m", "role": "assistant", "content": {"type": "text", "text": "well"}}
        answers = dict.fromkeys(result["inputRequests"], sampled)
        body["params"] |= {"requestState": result["requestState"], "inputResponses": answers}
        other = await asked(endpoint, headers, heavy(body, b'{"b":2,"a":2}'))
        assert other.code == -32602
        again = await asked(endpoint, headers, heavy(body, b'{"b":2,"a":1}'))
        assert again.json["result"]["content"][0]["text"] == "m"


@pytest.mark.parametrize(
    ("tool", "unit"), [("hold_numbers", b"[0]"), ("hold_objects", b'{"a":0}'), ("hold_objects", b"{}")]
)
async def test_large_request_arguments_are_stored_only_once_while_the_handler_runs(
    tool: str, unit: bytes, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, **LIMITS) as endpoint:
        headers, body = of_modern(1, tool)
        text = heavy(body, unit, size=2 * BODY)
        tracemalloc.start()
        try:
            once = decode(text)
            weight, _ = tracemalloc.get_traced_memory()
            del once
            before, _ = tracemalloc.get_traced_memory()
            await post(endpoint, headers, text)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert scene.running == 1
        assert after - before < 1.3 * weight


async def test_large_body_rejected_for_one_caller_leaves_the_memory_limit_of_other_callers_unchanged(
    decoded: Decoded, autojump_clock: MockClock
) -> None:
    scene = Holding()
    async with in_memory(scene.server, auth=protected(issued()), **LIMITS) as endpoint:
        await hold_much(endpoint, scene, bearer("bob-1"))
        decoded.lengths.clear()
        headers, body = of_modern(2)
        text = heavy(body, size=120_000)
        refused = await asked(endpoint, {**headers, **bearer("bob-1")}, text)
        assert (refused.status, decoded.lengths) == (503, [])
        await post(endpoint, {**headers, **bearer("alice-1")}, text)
        assert (scene.running, len(decoded.lengths)) == (2, 1)
