"""Two versions of a server side by side: what the next one writes, with one more field or in forms of its own, and what
today's makes of that. The first replica is of the next version."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
from tests.fleet.fleet import FORM, Fleet, Member, accepted, fleet, question_in
from tests.fleet.replicas import FleetScene, LinkedMemory, replicated
from tests.fleet.test_shared_changes import Listener, add_things
from tests.serving.http.raw import BASE, INITIALIZE, message
from tests.serving.http.scenes import SAMPLING, call, next_message, rest_of, text_of
from trio.testing import MockClock

from trio_mcp import MemoryStorage, RequestContext, Server
from trio_mcp.fleet.messenger import SealedMessenger
from trio_mcp.server.request_state import SealedState, StateCipher
from trio_mcp.stores.shared import Replica, StoredSession

ANSWER = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}
MORE = "a field of the next version"

Rewritten = Callable[[dict[str, Any]], dict[str, Any]]


def longer(array: bytes) -> bytes:
    """A packed array with one more field at its end."""
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(array), MORE])


class _NextSessions:
    """The sessions of a replica that writes other facts than today's: ``new`` has the members that differ."""

    def __init__(self, sessions: Any, new: dict[str, Any]) -> None:
        self._sessions, self._new = sessions, new
        self._old: dict[str, Any] = {}

    def _written(self, facts: bytes) -> bytes:
        fields = msgspec.msgpack.decode(facts)
        self._old = {name: fields[name] for name in self._new if name in fields}
        return msgspec.msgpack.encode({**fields, **self._new})

    async def open(self, session_id: str, state: bytes, **options: Any) -> None:
        await self._sessions.open(session_id, self._written(state) if state else state, **options)

    async def change(self, session_id: str, state: bytes, **options: Any) -> bool:
        return await self._sessions.change(session_id, self._written(state), **options)

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        stored = await self._sessions.read(session_id, idle_ms=idle_ms)
        if stored is None:
            return None
        facts = {**msgspec.msgpack.decode(stored.state), **self._old}
        return attrs.evolve(stored, state=msgspec.msgpack.encode(facts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)


class _NextCourier:
    """The courier of a replica whose letters have one more field, in the envelope and in what is not sealed, or other
    kinds: ``renamed`` has their names."""

    def __init__(self, courier: Any, renamed: dict[str, str]) -> None:
        self._courier, self._renamed = courier, renamed

    async def send(self, replica: str, letter: bytes, **options: Any) -> None:
        kind, sender, number, content = msgspec.msgpack.decode(letter)
        content = longer(content) if kind.startswith("session.") else content
        envelope = [self._renamed.get(kind, kind), sender, number, content, MORE]
        await self._courier.send(replica, msgspec.msgpack.encode(envelope), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._courier, name)


class _NextChanges:
    """The log of changes of a replica that has more kinds of things."""

    def __init__(self, changes: Any) -> None:
        self._changes = changes

    async def record(self, changed: Collection[str]) -> None:
        await self._changes.record([*changed, "skills", "skill:a"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._changes, name)


def next_version(replica: Replica, facts: dict[str, Any], renamed: dict[str, str]) -> Replica:
    parts: dict[str, Any] = {
        "sessions": _NextSessions(replica.sessions, facts),
        "courier": _NextCourier(replica.courier, renamed),
        "changes": _NextChanges(replica.changes),
    }
    return attrs.evolve(replica, **parts)


class NextMemory(LinkedMemory):
    """A storage of legacy sessions, where the first replica is of the next version."""

    def __init__(self, facts: dict[str, Any] | None = None, **renamed: str) -> None:
        super().__init__()
        self._facts = facts or {}
        self._renamed = {kind.replace("_", "."): name for kind, name in renamed.items()}

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        is_first = not self.links
        async with super().join(name, secrets) as replica:
            yield next_version(replica, self._facts, self._renamed) if is_first else replica


class NextStorage(MemoryStorage):
    """A storage of modern requests, where the first replica is of the next version."""

    def __init__(self, **renamed: str) -> None:
        super().__init__()
        self._renamed = renamed
        self._joined = 0

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        self._joined += 1
        is_first = self._joined == 1
        async with super().join(name, secrets) as replica:
            yield next_version(replica, {}, self._renamed) if is_first else replica


# Legacy sessions


async def test_session_fields_of_a_newer_version_are_kept_when_the_current_version_writes_the_session(
    autojump_clock: MockClock,
) -> None:
    memory = NextMemory({"colour": "blue"})
    async with replicated(FleetScene().server, memory=memory) as endpoint:
        opened = await endpoint.ask("POST", {**BASE}, INITIALIZE)
        session: Any = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        assert (await endpoint.ask("POST", session, message("notifications/initialized"))).status == 202
        answer = await endpoint.ask("POST", session, message("logging/setLevel", {"level": "debug"}, 1))
        assert answer.json["result"] == {}
        stored = await memory.kept.sessions.read(session["Mcp-Session-Id"], idle_ms=10_000)
    facts = msgspec.msgpack.decode(stored.state)
    assert (facts["colour"], facts["is_initialized"], facts["log_level"]) == ("blue", True, "debug")


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"form": 2}, "unknown format 2"), ({"revision": "2027-01-01"}, "unknown protocol revision")],
    ids=["form", "revision"],
)
async def test_session_in_a_newer_format_gets_status_503_and_is_left_unchanged(
    facts: dict[str, Any], words: str, autojump_clock: MockClock
) -> None:
    """The client is told to come again, and finds a replica that can read the session."""
    memory = NextMemory(facts)
    async with replicated(FleetScene().server, memory=memory) as endpoint:
        opened = await endpoint.ask("POST", {**BASE}, INITIALIZE)
        session: Any = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        before = await memory.kept.sessions.read(session["Mcp-Session-Id"], idle_ms=10_000)
        for _ in range(2):
            answer = await endpoint.ask("POST", session, call("echo", text="x"))
            assert answer.status == 503
            assert answer.headers["retry-after"]
            assert words in answer.body.decode()
        assert text_of((await endpoint.ask("POST", session, call("echo", text="x"))).json) == "x"
        for _ in range(2):  # as before
            assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 503
        assert await memory.kept.sessions.read(session["Mcp-Session-Id"], idle_ms=10_000) == before


async def asked_at_the_last(endpoint: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The session, a call that the third replica runs, and its question; the next message goes to the first one."""
    session = await endpoint.initialize(**SAMPLING)
    post = await endpoint.post(session, call("ask", name="asker"))
    await post.head()
    return session, post, await next_message(post)


async def test_forwarded_sampling_answer_with_an_unknown_field_is_accepted(autojump_clock: MockClock) -> None:
    async with replicated(FleetScene().server, memory=NextMemory()) as endpoint:
        session, post, question = await asked_at_the_last(endpoint)
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": ANSWER}
        assert (await endpoint.ask("POST", session, answer)).status == 202
        assert text_of((await rest_of(post))[-1]) == "m has answered"


async def test_forwarded_sampling_answer_is_refused_by_a_replica_that_does_not_know_the_message_kind(
    autojump_clock: MockClock,
) -> None:
    async with replicated(FleetScene().server, memory=NextMemory(session_message="session.message2")) as endpoint:
        session, post, question = await asked_at_the_last(endpoint)
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": ANSWER}
        refused = await endpoint.ask("POST", session, answer)
        assert (refused.status, refused.json["error"]["code"]) == (400, -32600)
        assert "knows no messages of the kind session.message2" in refused.json["error"]["message"]
        assert (await endpoint.ask("POST", session, answer)).status == 202  # today's version carries it
        assert text_of((await rest_of(post))[-1]) == "m has answered"


# Modern requests


def add_tools(server: Server, _: Fleet, number: int) -> None:
    @server.tool
    async def greet(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Who?", FORM)
        ctx.progress(1, 2, "half")
        return f"hello {answer.content} from {number}"


async def carried(taker: Member, owner: Member) -> Any:
    """The reply to a retry that ``taker`` carries to ``owner``."""
    question = question_in(await owner.call("greet"))
    return (await taker.call("greet", before=question, answers=accepted(question, name="Ada"))).json


@pytest.mark.parametrize("is_taker", [True, False], ids=["taker", "owner"])
async def test_retry_is_forwarded_between_replicas_even_if_messages_contain_unknown_fields(
    is_taker: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(add_tools, shared=NextStorage()) as (new, old):

        def seal(self: Any, kind: str, receiver: str, content: msgspec.Struct) -> bytes:
            packed = msgspec.msgpack.encode(content)
            about = f"{kind} {self._replica} {receiver}".encode()
            return self._keys.seal(longer(packed) if self._replica == new.id else packed, about)

        monkeypatch.setattr(SealedMessenger, "seal", seal)
        taker, owner = (new, old) if is_taker else (old, new)
        reply = await carried(taker, owner)
        assert text_of(reply) == f"hello {{'name': 'Ada'}} from {int(is_taker)}"


async def test_forwarded_retry_fails_immediately_at_a_replica_that_does_not_know_the_message_kind(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools, shared=NextStorage(retry="retry2")) as (new, old):
        reply = await carried(new, old)
        assert reply["error"]["code"] == -31003
        assert "this replica knows no messages of the kind retry2" in reply["error"]["message"]
        assert text_of(await carried(old, new)) == "hello {'name': 'Ada'} from 0"


async def test_call_ends_with_an_error_if_the_message_with_its_result_is_of_an_unknown_kind(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_tools, shared=NextStorage(**{"retry-lines": "retry-lines2"})) as (new, old):
        with trio.fail_after(10):
            reply = await carried(old, new)
        assert reply["error"]["code"] == -31003


async def test_retry_encrypted_by_a_newer_version_fails_immediately(autojump_clock: MockClock) -> None:
    async with fleet(add_tools, shared=NextStorage()) as (new, old):
        assert new.running.fleet is not None
        seal: Any = new.fleet.retries._messenger
        seal._keys = new.running.cipher.keys_for(b"trio-mcp carried retry 2 ")
        for taker, owner in ((new, old), (old, new)):
            reply = await carried(taker, owner)
            assert reply["error"]["code"] == -31003
            assert "has other secrets, or another version" in reply["error"]["message"]


def give_states(cipher: StateCipher, purpose: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``cipher`` write states with one more field, sealed for ``purpose``."""
    key = cipher.keys_for(purpose)

    def seal(content: SealedState) -> str:
        fields = msgspec.json.decode(msgspec.json.encode(content))
        return base64.urlsafe_b64encode(key.seal(msgspec.json.encode([*fields, MORE]), purpose)).decode()

    monkeypatch.setattr(cipher, "seal", seal)


async def test_request_state_with_an_unknown_field_is_accepted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(add_tools, shared=NextStorage()) as (new, old):
        give_states(new.running.cipher, b"trio-mcp requestState 1 ", monkeypatch)
        assert text_of(await carried(old, new)) == "hello {'name': 'Ada'} from 0"


async def test_request_state_in_a_newer_format_gets_error_invalid_params(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(add_tools, shared=NextStorage()) as (new, old):
        give_states(new.running.cipher, b"trio-mcp requestState 2 ", monkeypatch)
        reply = await carried(old, new)
        assert reply["error"]["code"] == -32602
        assert "invalid requestState" in reply["error"]["message"]


async def test_unknown_kinds_of_changes_from_a_newer_version_are_ignored(autojump_clock: MockClock) -> None:
    async with fleet(add_things, shared=NextStorage()) as (new, old):
        listener = await Listener.at(old, toolsListChanged=True, resourceSubscriptions=["a:1"])
        new.server._observers.list_changed("notifications/tools/list_changed")
        new.server.resource_updated("a:1")
        assert sorted(await listener.told()) == ["a:1", "tools"]
