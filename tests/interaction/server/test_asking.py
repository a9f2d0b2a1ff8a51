"""S2C: a server in another process sends requests to its client."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from tests.interaction.harness import wait_until
from tests.interaction.raw_client import LATEST_LEGACY, LEGACY, MODERN, RawClient, Start, across

ALL: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "fine"}, "model": "m"}
METHODS = {
    "sampling": "sampling/createMessage",
    "elicitation": "elicitation/create",
    "url": "elicitation/create",
    "roots": "roots/list",
}


def answers(client: RawClient, request_id: Any) -> list[str]:
    """What `ask` returned."""
    text = client.result(request_id)["content"][0]["text"]
    return ast.literal_eval(text)


def test_s2c_01_other_requests_are_served_while_handler_waits_for_sampling(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        call = client.call("ask", {"kind": "sampling"})
        question = client.asked("sampling/createMessage")
        assert question["params"]["maxTokens"] == 10
        for number in range(20):
            assert client.echo(str(number)) == str(number)
        client.refuse(question, -1, "User rejected the request")
        (text,) = answers(client, call)
        assert text.startswith("PeerError -1:"), text
        assert "User rejected the request" in text


def test_s2c_01_sampling_answers_in_any_order_reach_the_requests_they_answer(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        call = client.call("ask", {"kind": "sampling", "n": 10})
        questions = [client.asked("sampling/createMessage") for _ in range(10)]
        assert len({question["id"] for question in questions}) == 10
        for question in reversed(questions):
            (message,) = [question["params"]["messages"][0]]
            client.answer(question, {**SAMPLED, "content": {"type": "text", "text": message["content"]["text"]}})
        assert [f"question {place}" in text for place, text in enumerate(answers(client, call))] == [True] * 10


def test_s2c_01_cancelled_call_cancels_each_of_its_elicitations_once_with_its_cancel_reason(start: Start) -> None:
    """Ruling 3: one cancel per request, under the caller's reason, and late answers are ignored."""
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        call = client.call("ask", {"kind": "elicitation", "n": 3}, id=1)
        questions = [client.asked("elicitation/create") for _ in range(3)]
        client.silent_about(1)
        client.cancel(call, "the user closed the window")
        for _ in questions:
            client.take(lambda m: m.get("method") == "notifications/cancelled", "a cancel")
        for question in questions:
            client.answer(question, {"action": "accept", "content": {"name": "late"}})
        client.ping()
        assert client.finish() == 0
        cancels = client.notifications("notifications/cancelled")
        assert sorted(cancel["requestId"] for cancel in cancels) == sorted(q["id"] for q in questions)
        assert {cancel["reason"] for cancel in cancels} == {"the user closed the window"}
        assert client.stderr() == ""


def test_s2c_01_request_of_the_client_and_request_of_the_server_can_have_the_same_id(start: Start) -> None:
    """Ruling 6: a call under the very id of the server's question, answered each on its own."""
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        call = client.call("ask", {"kind": "sampling"})
        question = client.asked("sampling/createMessage")
        client.started("sleep", {"ms": 60_000}, id=question["id"])
        client.silent_about(question["id"])
        client.cancel(question["id"], "the call, not the question")
        client.journal.wait_for("cancelled", call=question["id"])
        client.answer(question, SAMPLED)
        assert "fine" in answers(client, call)[0]


def test_s2c_04_replies_with_unknown_ids_do_not_answer_a_pending_sampling_request(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        first = client.call("ask", {"kind": "sampling"})
        answered = client.asked("sampling/createMessage")
        client.answer(answered, SAMPLED)
        answers(client, first)

        second = client.call("ask", {"kind": "sampling"})
        question = client.asked("sampling/createMessage")
        error = {"code": -1, "message": "no"}
        before = len(client.messages)
        client.answer(answered, SAMPLED)
        client.refuse(answered, -1, "twice")
        for reply in (
            {"id": 4711, "result": SAMPLED},
            {"id": "4711", "error": error},
            {"id": str(question["id"]), "result": SAMPLED},
            {"id": None, "error": error},
            {"error": error},
            {"error": "a text"},
        ):
            client.send({"jsonrpc": "2.0", **reply})
        client.send({"jsonrpc": "1.0", "result": SAMPLED})
        client.ping()
        assert len(client.messages) == before + 1, "no answer to an answer"
        client.send({"jsonrpc": "2.0", "id": question["id"]})  # could be a request as well, so it is refused
        client.take(lambda m: m.get("error", {}).get("code") == -32600 and m["id"] is None, "the refusal")
        assert client.echo("lives") == "lives"
        client.answer(question, SAMPLED)
        assert "fine" in answers(client, second)[0]


SENSELESS: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": ..., "result": SAMPLED, "error": {"code": -1, "message": "no"}},
    {"jsonrpc": "2.0", "id": ..., "error": {}},
    {"jsonrpc": "2.0", "id": ..., "error": {"code": "ENOENT", "message": ""}},
    {"jsonrpc": "1.0", "id": ..., "result": SAMPLED},
    {"jsonrpc": "2.0", "id": None, "result": SAMPLED},
    {"jsonrpc": "2.0", "id": 0.5, "result": SAMPLED},
    {"jsonrpc": "2.0", "result": SAMPLED},
]


ODD_ERRORS: list[tuple[Any, str]] = [
    ("a text", "PeerError -32603: the peer answered: a text (-32603)"),
    ({"code": "1", "message": 2}, 'PeerError 1: the peer answered: {"code":"1","message":2} (1)'),
    ({"message": "no code"}, "PeerError -32603: the peer answered: no code (-32603)"),
    ({"code": "EACCES", "message": "no"}, "PeerError -32603: the peer answered: EACCES: no (-32603)"),
]
"""Errors that JSON-RPC does not have, and what the handler gets for each."""


def test_s2c_04_sampling_request_raises_if_its_reply_is_malformed(start: Start) -> None:
    """Nobody answers twice, so the handler would wait for ever."""
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        for reply in SENSELESS:
            call = client.call("ask", {"kind": "sampling"})
            question = client.asked("sampling/createMessage")
            client.send({**reply, "id": question["id"]} if reply.get("id") is ... else reply)
            (text,) = answers(client, call)
            assert text.startswith("PeerError -32603" if client.is_bridged else "UnreadableAnswer"), (reply, text)
            assert client.is_bridged or "the answer cannot be read" in text
        assert client.echo("lives") == "lives"
        assert client.finish() == 0


def test_sampling_answered_with_a_nonstandard_error_object_raises_the_message_of_that_error(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        for error, raised in ODD_ERRORS:
            call = client.call("ask", {"kind": "sampling"})
            client.send({"jsonrpc": "2.0", "id": client.asked("sampling/createMessage")["id"], "error": error})
            assert answers(client, call) == [raised]
        assert client.echo("lives") == "lives"
        assert client.finish() == 0


def test_sampling_reply_with_a_null_error_beside_its_result_or_the_reverse_is_accepted(
    start: Start,
) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        call = client.call("ask", {"kind": "sampling"})
        question = client.asked("sampling/createMessage")
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": SAMPLED, "error": None})
        assert "fine" in answers(client, call)[0]
        call = client.call("ask", {"kind": "sampling"})
        question = client.asked("sampling/createMessage")
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": None, "error": {"code": -7, "message": "no"}})
        assert answers(client, call)[0].startswith("PeerError -7")
        assert client.finish() == 0


def test_s2c_04_invalid_sampling_result_raises_in_the_handler(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        for nonsense in (None, 1, "x", [], {}, {"role": "nobody"}, {**SAMPLED, "content": {"type": "odd"}}):
            call = client.call("ask", {"kind": "sampling"})
            client.answer(client.asked("sampling/createMessage"), nonsense)
            (text,) = answers(client, call)
            # What is no result at all does not get past a proxy.
            is_refused = client.is_bridged and not isinstance(nonsense, dict)
            assert text.startswith("PeerError -32603" if is_refused else "ProtocolViolation"), (nonsense, text)


@pytest.mark.parametrize("transport", ["stdio"])
def test_s2c_05_handler_that_waits_for_the_client_raises_connection_lost_at_end_of_input(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        client.call("ask", {"kind": "elicitation", "n": 3}, id=1)
        for _ in range(3):
            client.asked("elicitation/create")
        assert client.finish() == 0
        raised = client.journal.entries("raised", call=1)
        assert [entry["error"] for entry in raised] == ["ConnectionLost"] * 3
        # The handler went on and ended: its answer still goes to a client that reads.
        assert client.journal.events(1)[-2:] == ["end", "finally"]
        assert len(client.replies(1)) == 1
        assert client.journal.entries("end", tool="lifespan")
        assert client.stderr() == ""


def tasks_after_a_cancel(client: RawClient) -> str:
    """How many tasks there are, with the one that a connection starts when the first of its requests is cancelled."""
    client.cancel(client.started("sleep", {"ms": 60_000}))
    client.journal.wait_for("finally", tool="sleep")
    return client.text(client.call("tasks"))


@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_s2c_05_client_that_vanishes_fails_only_handlers_that_wait_for_that_client(
    start: Start, vanishes: bool
) -> None:
    with start(revision=LATEST_LEGACY) as other:
        tasks = tasks_after_a_cancel(other)
        other.started("sleep", {"ms": 60_000}, id="other")
        with other.beside(LATEST_LEGACY, ALL) as client:
            client.call("ask", {"kind": "elicitation", "n": 3}, id=1)
            for _ in range(3):
                client.asked("elicitation/create")
            if not vanishes:
                client.wire.close_input()
                client.drain()
        other.journal.wait_for("finally", call=1)
        raised = other.journal.entries("raised", call=1)
        assert [entry["error"] for entry in raised] == ["ConnectionLost"] * 3
        other.cancel("other")
        assert wait_until(lambda: other.text(other.call("tasks")) == tasks)
        assert other.finish() == 0
        assert other.stderr() == ""


def test_s2c_05_server_has_no_leftover_tasks_after_answered_refused_and_cancelled_requests(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities=ALL) as client:
        start = tasks_after_a_cancel(client)
        for kind in ("sampling", "elicitation", "roots"):
            for _ in range(5):
                answered = client.call("ask", {"kind": kind})
                client.answer(client.asked(METHODS[kind]), {})
                client.result(answered)
                refused = client.call("ask", {"kind": kind})
                client.refuse(client.asked(METHODS[kind]), -1, "no")
                client.result(refused)
                cancelled = client.call("ask", {"kind": kind})
                client.asked(METHODS[kind])
                client.cancel(cancelled)
        client.journal.wait_for("finally", tool="ask", count=45)
        assert wait_until(lambda: client.text(client.call("tasks")) == start)


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY))
def test_s2c_06_request_to_a_client_that_lacks_the_capability_raises_and_is_not_sent(
    start: Start, revision: str
) -> None:
    with start(revision=revision, capabilities={}) as client:
        for kind in METHODS:
            (text,) = answers(client, client.call("ask", {"kind": kind}))
            assert text.startswith("CapabilityMissing -32600"), text
        client.ping()
        assert client.finish() == 0
        assert not [m for m in client.messages if "method" in m], "nothing was sent"


@pytest.mark.parametrize("declared", [{}, {"form": {}}])
def test_s2c_06_url_elicitation_is_refused_if_client_declared_only_form_elicitation(
    start: Start, declared: dict[str, Any]
) -> None:
    with start(revision=LATEST_LEGACY, capabilities={"elicitation": declared}) as client:
        (text,) = answers(client, client.call("ask", {"kind": "url"}))
        assert text.startswith("CapabilityMissing -32600"), text
        call = client.call("ask", {"kind": "elicitation"})
        question = client.asked("elicitation/create")
        assert "mode" not in question["params"], "form is what there was before there were modes"
        client.answer(question, {"action": "accept", "content": {"name": "Ada"}})
        assert "Ada" in answers(client, call)[0]


def test_s2c_06_form_elicitation_is_refused_if_client_declared_only_url_elicitation(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities={"elicitation": {"url": {}}}) as client:
        (text,) = answers(client, client.call("ask", {"kind": "elicitation"}))
        assert text.startswith("CapabilityMissing -32600"), text
        call = client.call("ask", {"kind": "url"})
        question = client.asked("elicitation/create")
        assert question["params"] == {
            "mode": "url",
            "message": "go",
            "url": "https://example.org/",
            "elicitationId": "e0",
        }
        client.answer(question, {"action": "decline"})
        assert "decline" in answers(client, call)[0]


@pytest.mark.parametrize("capabilities", [{}, ALL])
def test_s2c_06_modern_server_returns_input_required_and_sends_no_request(
    start: Start, capabilities: dict[str, Any]
) -> None:
    """It asks by answering, and only for what the client declared."""
    with start(revision=MODERN, capabilities=capabilities) as client:
        for kind, method in METHODS.items():
            result = client.result(client.call("ask", {"kind": kind}))
            if capabilities:
                assert result["resultType"] == "input_required"
                assert [question["method"] for question in result["inputRequests"].values()] == [method]
            else:
                assert "CapabilityMissing -32021" in result["content"][0]["text"], result
        assert client.finish() == 0
        assert not [m for m in client.messages if "method" in m]
