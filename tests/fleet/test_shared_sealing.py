"""With secrets of the author, what sessions keep in the storage and send to each other says nothing to others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.fleet.test_shared_listening import listening
from tests.fleet.test_shared_resuming import stepping, told_in
from tests.serving.http.protection import Tokens, bearer, issued, protected, session_of
from tests.serving.http.raw import Answer, message
from tests.serving.http.scenes import SAMPLING, add_tools, call, messages_in, next_message, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import MemoryStorage, Server
from trio_mcp.fleet.sessions.event_log import StreamLog
from trio_mcp.fleet.storage.memory import _MemoryCourier
from trio_mcp.server.request_state import StateCipher
from trio_mcp.stores.task_store import UnreadableRecord, new_mark

OLD, NEW, OTHER = b"old secret" * 4, b"new secret" * 4, b"another secret" * 3
ANSWER = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}


async def kept(endpoint: FleetEndpoint, session: dict[str, str | None], cursor: str) -> list[bytes]:
    """Return the events of a stream, as the storage has them."""
    session_id, stream = session["Mcp-Session-Id"], cursor.rpartition("-")[0]
    return (await endpoint.memory.kept.events.read_after(session_id, stream, 0, retention_ms=10**6)).lines


@pytest.mark.parametrize("secrets", [[], [NEW]], ids=["without secrets", "with secrets"])
async def test_stored_events_are_encrypted_if_the_server_has_secrets(
    secrets: list[bytes], autojump_clock: MockClock
) -> None:
    scene = FleetScene(secrets=secrets)
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        post, cursor = await stepping(scene, endpoint.replicas[0], session)
        lines = await kept(endpoint, session, cursor)
        assert lines
        assert [b"jsonrpc" in line for line in lines] == [not secrets] * len(lines)
        scene["mine"].may_go_on.set()
        assert told_in(await rest_of(post)) == ["two", "three"]
        again = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": cursor})
        assert told_in(messages_in(again)) == ["two", "three"]


async def test_encrypted_event_copied_to_another_stream_gets_status_503(autojump_clock: MockClock) -> None:
    """Who can write to the storage can give no client the events of another."""
    scene = FleetScene(secrets=[NEW])
    async with replicated(scene.server) as endpoint:
        events, found = list[Any](), list[Any]()
        for name in ("mine", "yours"):
            session = await endpoint.initialize()
            scene[name].may_go_on.set()
            post, cursor = await stepping(scene, endpoint.replicas[0], session, name)
            await rest_of(post)
            log = endpoint.memory.kept.events._logs.get(session["Mcp-Session-Id"])
            events.append(log._streams[cursor.rpartition("-")[0]].events)
            found.append({**session, "Last-Event-ID": cursor})
        events[0][-1] = events[1][-1]
        assert (await endpoint.replicas[1].ask("GET", found[0])).status == 503
        assert (await endpoint.replicas[1].ask("GET", found[1])).status == 200


async def test_events_encrypted_with_an_older_secret_are_readable_but_not_with_an_unknown_secret(
    autojump_clock: MockClock,
) -> None:
    scene = FleetScene(secrets=[OLD, NEW])
    for number, secrets in ((1, [NEW, OLD]), (2, [OTHER])):
        scene.server.servers[number] = server = Server("scene", secrets=secrets)
        add_tools(server, scene.journals)
    async with replicated(scene.server) as endpoint:
        session = await endpoint.replicas[0].initialize()
        post, cursor = await stepping(scene, endpoint.replicas[0], session)
        scene["mine"].may_go_on.set()
        await rest_of(post)
        resumed = {**session, "Last-Event-ID": cursor}
        assert told_in(messages_in(await endpoint.replicas[1].ask("GET", resumed))) == ["two", "three"]
        assert (await endpoint.replicas[2].ask("GET", resumed)).status == 404


async def test_messages_between_replicas_are_encrypted_with_the_secrets_of_the_server(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    letters, post_letter = list[bytes](), _MemoryCourier.send

    async def note(courier: Any, replica: str, letter: bytes, **options: Any) -> None:
        letters.append(letter)
        await post_letter(courier, replica, letter, **options)

    monkeypatch.setattr(_MemoryCourier, "send", note)
    scene = FleetScene(secrets=[NEW])
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize(**SAMPLING)
        post = await endpoint.replicas[0].post(session, call("ask", name="asker"))
        await post.head()
        asked = await next_message(post)
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER}
        assert (await endpoint.replicas[1].ask("POST", session, answer)).status == 202
        assert [text_of(reply) for reply in await rest_of(post)] == ["m has answered"]
        stream = await listening(endpoint, session, 2)
        _, cursor = await stepping(scene, endpoint.replicas[0], session)
        await endpoint.replicas[1].get(session, cursor)
        await wait_all_tasks_blocked()
        await stream.aclose()
    kinds = [kind for kind in (b"session.message", b"session.resumed") if any(kind in letter for letter in letters)]
    assert kinds == [b"session.message", b"session.resumed"]
    assert not [letter for letter in letters if b"jsonrpc" in letter or cursor.rpartition("-")[0].encode() in letter]


# Facts


@attrs.define(eq=False)
class Intruder:
    """One who can write to the storage, but has no secret; and three replicas of a protected server, of which the third
    one is new to each session."""

    endpoint: FleetEndpoint
    scene: FleetScene
    tokens: Tokens

    def session(self, headers: dict[str, str | None]) -> str:
        return str(headers["Mcp-Session-Id"])

    async def facts(self, headers: dict[str, str | None]) -> bytes:
        return (await self._sessions.read(self.session(headers), idle_ms=10**6)).state

    async def rewrite(self, headers: dict[str, str | None], facts: bytes) -> None:
        name, sessions = self.session(headers), self._sessions
        stored = await sessions.read(name, idle_ms=10**6)
        assert await sessions.change(name, facts, expected_mark=stored.mark, mark=new_mark(), idle_ms=10**6)

    @property
    def _sessions(self) -> Any:
        return self.endpoint.memory.kept.sessions

    async def open(self, token: str) -> dict[str, str | None]:
        """Open a session at the first replica."""
        return await session_of(self.endpoint.replicas[0], token)

    async def ask(self, headers: dict[str, str | None], token: str, method: str = "POST", **more: str) -> Answer:
        """Ask the third replica, in the session of ``headers``, with another token."""
        body = None if method == "GET" else message("ping", request_id=1)
        return await self.endpoint.replicas[2].ask(method, {**headers, **bearer(token), **more}, body)


@asynccontextmanager
async def intruding(secrets: list[bytes]) -> AsyncGenerator[Intruder]:
    tokens, scene = issued(), FleetScene(**({"secrets": secrets} if secrets else {}))
    async with replicated(scene.server, auth=protected(tokens)) as endpoint:
        yield Intruder(endpoint, scene, tokens)


def with_principal(facts: bytes, name: str) -> bytes:
    """Facts that were never sealed, of another principal."""
    fields = msgspec.msgpack.decode(facts)
    assert "alice" in fields["principal"]
    return msgspec.msgpack.encode({**fields, "principal": fields["principal"].replace("alice", name)})


async def test_session_whose_stored_principal_was_changed_cannot_be_opened_or_resumed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with intruding([]) as unsealed:  # without secrets, whoever can write to the storage can do that
        session = await unsealed.open("alice-1")
        await unsealed.rewrite(session, with_principal(plain := await unsealed.facts(session), "bob"))
        assert (await unsealed.ask(session, "bob-1")).status == 200
    with caplog.at_level("WARNING", "trio_mcp"):
        await _rewrite_and_resume(plain)
    assert "encrypted with a secret that this replica doesn't have" in caplog.text


async def _rewrite_and_resume(plain: bytes) -> None:
    async with intruding([NEW]) as intruder:
        session = await intruder.open("alice-1")
        post, cursor = await stepping(intruder.scene, intruder.endpoint.replicas[0], session)
        sealed = await intruder.facts(session)
        flipped = bytes([*sealed[:-20], sealed[-20] ^ 1, *sealed[-19:]])
        for facts in (with_principal(plain, "bob"), plain, flipped, sealed[:-1], sealed[:5], b""):
            await intruder.rewrite(session, facts)
            for token in ("bob-1", "alice-1"):
                for answer in (
                    await intruder.ask(session, token),
                    await intruder.ask(session, token, "GET"),
                    await intruder.ask(session, token, "GET", **{"Last-Event-ID": cursor}),
                ):
                    assert answer.status == 404
        await intruder.rewrite(session, sealed)
        assert (await intruder.ask(session, "bob-1")).status == 404
        assert (await intruder.ask(session, "alice-2")).status == 200
        await post.aclose()


async def test_encrypted_session_state_copied_to_another_session_gets_status_404(autojump_clock: MockClock) -> None:
    async with intruding([NEW]) as intruder:
        of_alice, of_bob = await intruder.open("alice-1"), await intruder.open("bob-1")
        mine = await intruder.facts(of_bob)
        assert mine != await intruder.facts(of_alice)
        await intruder.rewrite(of_alice, mine)
        for token in ("bob-1", "alice-1"):
            assert (await intruder.ask(of_alice, token)).status == 404
        assert (await intruder.ask(of_bob, "bob-1")).status == 200


async def test_session_whose_stored_state_was_tampered_with_ends_at_the_replica_that_cached_it(
    autojump_clock: MockClock,
) -> None:
    """At the replica that knows the session: it writes nothing that would seal what others wrote."""
    async with intruding([NEW]) as intruder:
        for body in (message("ping", request_id=1), message("logging/setLevel", {"level": "debug"}, 2)):
            for seconds in (0, 6):
                session = await intruder.open("alice-1")
                forged = await intruder.facts(await intruder.open("bob-1"))
                await intruder.rewrite(session, forged)
                await trio.sleep(seconds)
                replica = intruder.endpoint.replicas[0]
                await replica.ask("POST", session, body)  # which may be answered by what is known since a moment
                await wait_all_tasks_blocked()
                assert (await replica.ask("POST", session, body)).status == 404
                assert await intruder.facts(session) == forged


@pytest.mark.parametrize("secrets", [[], [NEW]], ids=["without secrets", "with secrets"])
async def test_session_state_is_encrypted_if_the_server_has_secrets(
    secrets: list[bytes], autojump_clock: MockClock
) -> None:
    async with intruding(secrets) as intruder:
        session = await intruder.open("alice-1")
        facts = [await intruder.facts(session)]
        level = message("logging/setLevel", {"level": "debug"}, 1)
        assert (await intruder.endpoint.replicas[1].ask("POST", session, level)).status == 200
        facts.append(await intruder.facts(session))
        for each in facts:
            assert [word in each for word in (b"alice", b"clientInfo", b"log_level")] == [not secrets] * 3


async def test_sampling_answer_in_a_session_with_tampered_state_gets_status_400_without_a_traceback(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with intruding([NEW]) as intruder:
        session = await intruder.open("alice-1")
        await intruder.rewrite(session, b"anything")
        broken = b'{"jsonrpc": "2.0", "id": "%b.1", "result": {}' % intruder.endpoint.memory.ids[0].encode()
        answer = await intruder.endpoint.replicas[2].ask("POST", session, broken)
        assert answer.status == 400
    assert "Traceback" not in caplog.text


async def test_encrypted_events_can_be_read_only_by_the_principal_they_belong_to(autojump_clock: MockClock) -> None:
    """Who finds out how to give a session to another account gets no events that were there before."""
    async with MemoryStorage().join("server") as replica:
        keys = StateCipher("server", [NEW]).keys_for(b"test")
        mine, yours = (StreamLog(replica.events, "session", 1000, 1000, keys, owner) for owner in ("alice", "bob"))
        await mine.open("stream", "holder", b"1")
        assert await mine.append("stream", "holder", 1, [b"a\n", b"b\n"])
        read = await mine.read_after("stream", 0)
        assert read is not None
        assert read.lines == [b"a\n", b"b\n"]
        with pytest.raises(UnreadableRecord):
            await yours.read_after("stream", 0)
        assert await yours.finish_dead(read.stream)
        with pytest.raises(UnreadableRecord):  # neither gets a line of the other
            await mine.read_after("stream", 0)
