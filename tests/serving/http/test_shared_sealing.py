"""With secrets of the author, what sessions keep in the storage and send to each other says nothing to others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serving.http.replicas import FleetEndpoint, FleetScene, replicated
from tests.serving.http.scenes import SAMPLING, add_tools, call, messages_in, next_message, rest_of, text_of
from tests.serving.http.test_shared_listening import listening
from tests.serving.http.test_shared_resuming import stepping, told_in
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Server
from trio_mcp.stores.memory_shared import _Courier

OLD, NEW = b"old secret" * 4, b"new secret" * 4
ANSWER = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}


async def kept(endpoint: FleetEndpoint, session: dict[str, str | None], cursor: str) -> list[bytes]:
    """Return the events of a stream, as the storage has them."""
    session_id, stream = session["Mcp-Session-Id"], cursor.rpartition("-")[0]
    return (await endpoint.memory.kept.events.after(session_id, stream, 0, keep=10**6)).lines


@pytest.mark.parametrize("secrets", [[], [NEW]], ids=["without secrets", "with secrets"])
async def test_events_are_sealed_with_the_secrets_of_the_server(
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


async def test_event_is_good_for_its_stream_alone(autojump_clock: MockClock) -> None:
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


async def test_events_of_the_last_secret_are_read_and_of_others_are_not(autojump_clock: MockClock) -> None:
    scene = FleetScene(secrets=[OLD])
    for number, secrets in ((1, [NEW, OLD]), (2, [NEW])):
        scene.server.servers[number] = server = Server("scene", secrets=secrets)
        add_tools(server, scene.journals)
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        post, cursor = await stepping(scene, endpoint.replicas[0], session)
        scene["mine"].may_go_on.set()
        await rest_of(post)
        resumed = {**session, "Last-Event-ID": cursor}
        assert told_in(messages_in(await endpoint.replicas[1].ask("GET", resumed))) == ["two", "three"]
        assert (await endpoint.replicas[2].ask("GET", resumed)).status == 503


async def test_letters_are_sealed_with_the_secrets_of_the_server(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    letters, post_letter = list[bytes](), _Courier.post

    async def note(courier: Any, replica: str, letter: bytes, **options: Any) -> None:
        letters.append(letter)
        await post_letter(courier, replica, letter, **options)

    monkeypatch.setattr(_Courier, "post", note)
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
