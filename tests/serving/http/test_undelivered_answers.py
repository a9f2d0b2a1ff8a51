"""Answers to questions that the server itself refuses, or that never come: their questions end all the same."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.serving.http.protection import bearer, issued, protected, session_of
from tests.serving.http.raw import Connection, Endpoint, message
from tests.serving.http.scenes import (
    SAMPLING,
    Journal,
    Scene,
    call,
    in_memory,
    next_message,
    over_sockets,
    rest_of,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits
from trio_mcp.jsonrpc.errors import UnreadableAnswer

MOST = 20_000
"""Bytes that a message may have here."""


@attrs.define(eq=False)
class Asked:
    """A session in which a handler waits for the answer to ``question``, which came by ``post``."""

    endpoint: Endpoint
    session: dict[str, str | None]
    post: Connection
    question: dict[str, Any]
    journal: Journal

    def answer(self, padding: int, *, last: bool = False) -> bytes:
        """Return an answer that is longer by ``padding`` bytes than it needs to be. ``last``: its id comes last."""
        result = {"role": "assistant", "content": {"type": "text", "text": "x" * padding}, "model": "m"}
        told: dict[str, Any] = {"jsonrpc": "2.0", "id": self.question["id"], "result": result}
        return json.dumps(dict(reversed(told.items())) if last else told).encode()

    async def fails(self) -> str:
        """Wait for the end of the handler, and return the words of its failure."""
        await self.journal.ended.wait()
        assert isinstance(self.journal.failure, UnreadableAnswer)
        assert "result" in (await rest_of(self.post))[-1]
        assert (await self.endpoint.ask("POST", self.session, message("ping", request_id=9))).status == 200
        return str(self.journal.failure)


async def asked(endpoint: Endpoint, scene: Scene, session: dict[str, str | None]) -> Asked:
    post = await endpoint.connect()
    await post.send("POST", session, call("ask", name="asker"))
    await post.head()
    return Asked(endpoint, session, post, await next_message(post), scene["asker"])


@asynccontextmanager
async def asking(**limits: Any) -> AsyncGenerator[Asked]:
    scene = Scene()
    async with in_memory(scene.server, **{"max_message_bytes": MOST, **limits}) as endpoint:
        yield await asked(endpoint, scene, await endpoint.initialize(**SAMPLING))


@pytest.mark.parametrize("last", [False, True], ids=["id first", "id last"])
@pytest.mark.parametrize("together", [True, False], ids=["in one write", "head first"])
async def test_s2c_09_too_long_sampling_answer_fails_the_sampling_request(
    autojump_clock: MockClock, last: bool, together: bool
) -> None:
    async with asking() as there:
        body = there.answer(MOST, last=last)
        connection = await there.endpoint.connect()
        if together:
            await connection.send("POST", there.session, body)
        else:
            headers = {**there.session, "Content-Length": str(len(body))}
            await connection.send("POST", headers)
            await wait_all_tasks_blocked()
            await connection.stream.send_all(body)
        assert (await connection.answer()).status == 413
        assert await there.fails() == (
            "sampling/createMessage: the answer cannot be read: the body is longer than 20000 bytes"
        )


async def test_s2c_09_too_long_chunked_sampling_answer_fails_the_sampling_request(autojump_clock: MockClock) -> None:
    async with asking() as there:
        connection = await there.endpoint.connect()
        await connection.send("POST", {**there.session, "Transfer-Encoding": "chunked"})
        body = there.answer(MOST)
        await connection.stream.send_all(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await connection.answer()).status == 413
        await there.fails()


@pytest.mark.parametrize("chunked", [False, True])
async def test_s2c_09_sampling_answer_whose_body_times_out_fails_the_sampling_request(
    autojump_clock: MockClock, chunked: bool
) -> None:
    async with asking(body_timeout=5) as there:
        connection = await there.endpoint.connect()
        body = there.answer(100)
        length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        await connection.send("POST", {**there.session, **length})
        part = b"%x\r\n%b" % (len(body), body[:-10]) if chunked else body[:-10]
        await connection.stream.send_all(part)
        assert (await connection.answer()).status == 408
        assert "within 5 s" in await there.fails()


async def test_s2c_09_too_long_answer_without_a_readable_id_fails_the_only_open_sampling_request(
    autojump_clock: MockClock,
) -> None:
    async with asking() as there:
        answer = json.loads(there.answer(10))
        body = json.dumps({"padding": "x" * 10 * MOST, **answer}).encode()
        assert (await there.endpoint.ask("POST", there.session, body)).status == 413
        await there.fails()


async def test_s2c_09_too_deeply_nested_answer_fails_the_only_open_sampling_request() -> None:
    async with asking() as there:
        deep = b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}"
        assert (await there.endpoint.ask("POST", there.session, deep)).status == 400
        await there.fails()


async def test_sampling_answer_that_is_not_json_fails_the_sampling_request() -> None:
    async with asking() as there:
        assert (await there.endpoint.ask("POST", there.session, there.answer(10)[:-1])).status == 400
        await there.fails()


async def test_s2c_09_too_long_sampling_answer_over_tcp_fails_the_sampling_request() -> None:
    scene = Scene()
    async with over_sockets(scene.server, limits=Limits(max_message_bytes=MOST)) as endpoint:
        there = await asked(endpoint, scene, await endpoint.initialize(**SAMPLING))
        assert (await endpoint.ask("POST", there.session, there.answer(1_000_000))).status == 413
        await there.fails()


async def test_rejected_body_that_only_contains_the_id_of_a_sampling_request_does_not_fail_that_request(
    autojump_clock: MockClock,
) -> None:
    async with asking(body_timeout=5) as there:
        hidden = {"arguments": {"result": 1, "id": there.question["id"]}, "name": "x" * MOST}
        for body in (message("tools/call", hidden, there.question["id"]), message("notifications/x", hidden)):
            assert (await there.endpoint.ask("POST", there.session, body)).status == 413
        # What has come ends in what could be the end of an answer.
        part = b'{"jsonrpc": "2.0", "result": [{"id": %d}' % there.question["id"]
        connection = await there.endpoint.connect()
        await connection.send("POST", {**there.session, "Content-Length": "1000"})
        await connection.stream.send_all(b'{"method": "x", "params": ' + part)
        assert (await connection.answer()).status == 408
        connection = await there.endpoint.connect()
        await connection.send("POST", {**there.session, "Content-Length": "1000"})
        await connection.stream.send_all(b'{"jsonrpc": "2.0", ')
        assert (await connection.answer()).status == 408
        await trio.sleep(10)
        assert not there.journal.ended.is_set()
        assert (await there.endpoint.ask("POST", there.session, there.answer(10))).status == 202
        await there.journal.ended.wait()
        assert there.journal.failure is None


async def test_sampling_request_of_a_session_cannot_be_failed_by_another_principal(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with in_memory(scene.server, auth=protected(issued()), max_message_bytes=MOST) as endpoint:
        there = await asked(endpoint, scene, await session_of(endpoint, "alice-1", **SAMPLING))
        for stranger in ({**there.session, **bearer("bob-1")}, {**there.session, "Mcp-Session-Id": "unknown"}):
            assert (await endpoint.ask("POST", stranger, there.answer(MOST))).status == 413
        await trio.sleep(10)
        assert not there.journal.ended.is_set()
        assert (await endpoint.ask("POST", {**there.session, **bearer("alice-2")}, there.answer(MOST))).status == 413
        await there.fails()


async def test_s2c_10_sampling_request_without_an_answer_fails_after_answer_timeout(
    autojump_clock: MockClock,
) -> None:
    async with asking(answer_timeout=300, session_timeout=100) as there:
        asked_at = trio.current_time()
        told = await rest_of(there.post)  # the client is there all the time
        assert trio.current_time() - asked_at == pytest.approx(300, abs=1)
        assert isinstance(there.journal.failure, trio.TooSlowError)
        assert str(there.journal.failure) == "sampling/createMessage: no answer within 300 s (answer_timeout)"
        cancelled, reply = told
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == there.question["id"]
        assert reply["result"]["isError"]
        assert (await there.endpoint.ask("POST", there.session, there.answer(10))).status == 202  # and says nothing


async def test_s2c_10_answer_timeout_can_be_infinite(autojump_clock: MockClock) -> None:
    async with asking(answer_timeout=math.inf) as there:
        await trio.sleep(5_000)
        assert (await there.endpoint.ask("POST", there.session, there.answer(10))).status == 202
        await there.journal.ended.wait()
        assert there.journal.failure is None
