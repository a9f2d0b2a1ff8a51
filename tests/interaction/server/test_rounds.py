"""S2C in the modern revision: a server in another process returns input-required results, and its handlers wait."""

from __future__ import annotations

import ast
import os
import signal
from typing import Any

import pytest
from tests.interaction.harness import wait_until
from tests.interaction.raw_client import LATEST_LEGACY, MODERN, RawClient, Start

ALL: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}


def ask(client: RawClient, arguments: dict[str, Any], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call ``ask``: the request, and the result that asks."""
    message = client.call_message("ask", arguments, **options)
    client.send(message)
    result = client.result(message["id"])
    assert result["resultType"] == "input_required", result
    return message, result


def come_back(client: RawClient, first: dict[str, Any], result: dict[str, Any], **options: Any) -> Any:
    """Send the next round; its id."""
    message = client.retry_message(first, result, **options)
    client.send(message)
    return message["id"]


def answers(client: RawClient, request_id: Any) -> list[str]:
    """What `ask` returned."""
    return ast.literal_eval(client.text(request_id))


def test_s2c_01_other_requests_are_served_while_a_modern_handler_awaits_input(start: Start) -> None:
    with start(revision=MODERN, capabilities=ALL) as client:
        first, result = ask(client, {"kind": "sampling", "n": 10})
        assert len(result["inputRequests"]) == 10
        for number in range(20):
            assert client.echo(str(number)) == str(number)
        responses = {
            key: {"role": "assistant", "model": "m", "content": question["params"]["messages"][0]["content"]}
            for key, question in reversed(result["inputRequests"].items())
        }
        texts = answers(client, come_back(client, first, result, responses=responses))
        assert [f"question {place}" in text for place, text in enumerate(texts)] == [True] * 10
        assert len(client.journal.entries("start", tool="ask")) == 1
        assert client.finish() == 0
        assert client.stderr() == ""


def test_s2c_01_cancel_stops_a_handler_that_awaits_input(start: Start) -> None:
    with start(revision=MODERN, capabilities=ALL) as client:
        first, result = ask(client, {"kind": "elicitation", "n": 3}, id=1)
        client.cancel(1, "the user closed the window")
        (cancelled,) = client.journal.wait_for("cancelled", call=1)
        assert (cancelled["cause"], cancelled["reason"]) == ("peer", "the user closed the window")
        client.journal.wait_for("finally", call=1)
        assert client.error(come_back(client, first, result))["code"] == -32602
        assert client.finish() == 0
        assert client.stderr() == ""


def test_s2c_05_end_of_input_cancels_handler_that_awaits_input(start: Start) -> None:
    with start(revision=MODERN, capabilities=ALL) as client:
        ask(client, {"kind": "elicitation"}, id=1)
        assert client.finish() == 0
        (cancelled,) = client.journal.entries("cancelled", call=1)
        assert cancelled["cause"] == client.cause_at_shutdown
        assert client.journal.events(1)[-1] == "finally"
        assert len(client.replies(1)) == 1, "nothing more is said for it"
        assert client.stderr() == ""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_s2c_05_shutdown_immediately_cancels_handler_that_awaits_input(start: Start, sent: int) -> None:
    with start(revision=MODERN, capabilities=ALL) as client:
        ask(client, {"kind": "elicitation"}, id=1)
        os.kill(client.pid, sent)
        client.drain()
        assert client.wait() == 0
        (cancelled,) = client.journal.entries("cancelled", call=1)
        assert cancelled["cause"] == client.cause_at_shutdown
        assert client.journal.events(1)[-1] == "finally"


@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_s2c_05_handler_that_awaits_input_ends_when_its_client_vanishes(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as other:
        tasks = other.text(other.call("tasks"))
        with other.beside(MODERN, ALL) as client:
            first, result = ask(client, {"kind": "elicitation", "n": 3}, id=1)
        other.journal.wait_for("finally", call=1)
        assert wait_until(lambda: other.text(other.call("tasks")) == tasks)
        # It comes back over another connection: nothing runs again.
        with other.beside(MODERN, ALL) as client:
            assert client.error(come_back(client, first, result))["code"] == -32602
        assert len(other.journal.entries("start", tool="ask")) == 1
        assert other.finish() == 0
        assert other.stderr() == ""


def test_handler_that_awaits_input_expires_after_retry_timeout(start: Start) -> None:
    with start(revision=MODERN, capabilities=ALL, limits={"retry_timeout": 0.2}) as client:
        first, result = ask(client, {"kind": "roots"}, id=1)
        (cancelled,) = client.journal.wait_for("cancelled", call=1)
        assert cancelled["cause"] == "expired"
        assert client.error(come_back(client, first, result))["code"] == -32602
        assert client.echo("lives") == "lives"
        assert client.finish() == 0
        assert client.stderr() == ""


def test_one_connection_serves_a_legacy_roots_request_and_a_modern_input_request(start: Start) -> None:
    with start(revision=LATEST_LEGACY, capabilities={"roots": {}}) as client:
        legacy = client.call("ask", {"kind": "roots"})
        question = client.asked("roots/list")
        client.revision, client.capabilities = MODERN, {"roots": {}}
        first, result = ask(client, {"kind": "roots"})
        client.answer(question, {"roots": [{"uri": "file:///legacy"}]})
        assert "file:///legacy" in answers(client, legacy)[0]
        key = next(iter(result["inputRequests"]))
        responses = {key: {"roots": [{"uri": "file:///modern"}]}}
        assert "file:///modern" in answers(client, come_back(client, first, result, responses=responses))[0]


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
def test_handler_is_cancelled_after_remaining_ms_in_the_request_meta_although_no_cancel_is_sent(
    start: Start, revision: str
) -> None:
    with start(revision=revision, limits={"deadline_grace": 0.1}) as client:
        client.echo("open")  # also behind a bridge, which opens its server first
        message = client.call_message("sleep", {"ms": 60_000}, id=1)
        message["params"].setdefault("_meta", {})["trio-mcp/remainingMs"] = 500
        client.silent_about(1)
        client.send(message)
        (cancelled,) = client.journal.wait_for("cancelled", call=1)
        assert cancelled["cause"] == "deadline"
        client.journal.wait_for("finally", call=1)
        assert client.echo("lives") == "lives"
        assert client.finish() == 0
        assert client.stderr() == ""
