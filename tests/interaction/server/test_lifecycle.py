"""API-03 and SHD-01: initialization and shutdown of a server in another process."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.interaction.harness import wait_until
from tests.interaction.raw_client import ERAS, LATEST_LEGACY, LEGACY, MODERN, Start, across

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.mark.parametrize("revision", LEGACY)
def test_api_03_initialize_and_first_request_sent_in_one_write_are_answered(start: Start, revision: str) -> None:
    with start() as client:
        messages = [
            client.message("initialize", client.opening(revision), id=1),
            INITIALIZED,
            client.message("tools/list", id=2),
        ]
        client.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        assert client.result(1)["protocolVersion"] == revision
        assert "echo" in [tool["name"] for tool in client.result(2)["tools"]]
        assert client.echo("on") == "on"


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY))
def test_api_03_request_before_initialized_notification_is_served(start: Start, revision: str) -> None:
    with start() as client:
        client.result(client.request("initialize", client.opening(revision)))
        assert client.result(client.request("tools/list"))["tools"]
        client.send(INITIALIZED)
        assert client.echo("on") == "on"


def test_api_03_request_before_initialize_is_refused(start: Start) -> None:
    with start() as client:
        client.ping()  # the one thing that is allowed before
        error = client.error(client.request("tools/list"))
        assert error["code"] == -32602
        assert "initialize" in error["message"]
        assert client.error(client.call("echo", {"text": "x"}))["code"] == -32602
        client.initialize()
        assert client.echo("on") == "on"


def test_api_03_second_initialize_is_refused_and_does_not_change_the_revision(start: Start) -> None:
    with start(revision="2024-11-05") as client:
        again = client.request("initialize", client.opening(LATEST_LEGACY))
        assert client.error(again)["code"] == -32600
        client.send([client.call_message("echo", {"text": "a batch, as before"}, id=1)])
        assert client.text(1) == "a batch, as before"


@pytest.mark.parametrize("asked", ["2099-01-01", "1999-01-01", "", MODERN])
def test_api_03_initialize_with_unknown_revision_gets_latest_legacy_revision(start: Start, asked: str) -> None:
    with start() as client:
        result = client.result(client.request("initialize", client.opening(asked)))
        assert result["protocolVersion"] == LATEST_LEGACY


def test_api_03_valid_initialize_succeeds_after_a_malformed_initialize_is_refused(start: Start) -> None:
    with start() as client:
        for params in ({}, {"protocolVersion": 1}, {"capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}):
            assert client.error(client.request("initialize", params))["code"] == -32602
        client.initialize()
        assert client.echo("on") == "on"


def test_api_03_one_connection_serves_modern_and_legacy_requests(start: Start) -> None:
    with start(revision=MODERN) as client:
        assert client.echo("modern first") == "modern first"
        client.revision = None
        client.initialize("2025-06-18")
        legacy = client.result(client.call("echo", {"text": "legacy"}))
        assert "resultType" not in legacy
        client.revision = MODERN
        modern = client.result(client.call("echo", {"text": "modern"}))
        assert modern["resultType"] == "complete"


@pytest.mark.parametrize(("transport", "revision"), across(ERAS))
def test_shd_01_server_after_sigterm_refuses_new_requests_finishes_short_and_cancels_long_requests(
    start: Start, revision: str
) -> None:
    with start(revision=revision, limits={"drain_timeout": 3}) as client:
        short = [client.held() for _ in range(3)]
        client.started("sleep", {"ms": 60_000}, id="long")
        client.silent_about("long")
        os.kill(client.pid, signal.SIGTERM)
        refused = wait_until(lambda: client.reply(client.call("echo", {"text": "new"})).get("error"))
        assert refused["code"] == -31000
        client.ping()  # still answered, so that nobody takes us for dead
        client.let_go()
        assert [client.text(request_id) for request_id in short] == ["let go"] * 3
        client.drain()
        assert client.wait() == 0
        (cancelled,) = client.journal.entries("cancelled", call="long")
        assert cancelled["cause"] == client.cause_at_shutdown
        assert "SIGTERM" in cancelled["reason"]
        assert client.journal.entries("end", tool="lifespan")
        assert client.stderr() == ""


def test_shd_01_client_can_answer_a_roots_request_of_a_running_call_after_sigterm_of_the_server(start: Start) -> None:
    """A signal ends only new work: the client still reads and writes, so accepted work can be finished."""
    with start(limits={"drain_timeout": 30}, revision=LATEST_LEGACY, capabilities={"roots": {}}) as client:
        call = client.call("ask", {"kind": "roots"})
        question = client.asked("roots/list")
        os.kill(client.pid, signal.SIGTERM)
        wait_until(lambda: "error" in client.reply(client.call("echo", {"text": "new"})))
        client.answer(question, {"roots": [{"uri": "file:///home"}]})
        assert "file:///home" in client.text(call)
        client.drain()
        assert client.wait() == 0
