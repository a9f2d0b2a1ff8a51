"""MOD, LOG-02: streams of ``subscriptions/listen`` of a server in another process."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from tests.interaction.harness import resident_bytes, wait_until
from tests.interaction.raw_client import LATEST_LEGACY, MODERN, RawClient, Start, is_same

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CANCELLED = "notifications/cancelled"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"
TEXT, NOTE = "fixture://text", "fixture://note/a"

IDS: list[Any] = [1, "1", 0, "0", -1, "-1", "a", "A", "", "🦑", 2**53, str(2**53), 7, "7", 8, "8", 9, "9", 10, "10"]
FILTERS: list[dict[str, Any]] = [
    {"toolsListChanged": True},
    {"promptsListChanged": True},
    {"resourceSubscriptions": [NOTE]},
    {"toolsListChanged": True, "resourceSubscriptions": [TEXT, NOTE]},
]


def listen(client: RawClient, request_id: Any, **notifications: Any) -> Any:
    return client.request("subscriptions/listen", {"notifications": notifications}, id=request_id)


def acknowledged(client: RawClient, request_id: Any) -> dict[str, Any]:
    """What was acknowledged of a stream, whose first message that must be."""
    first = client.take(lambda m: is_of(m, request_id), f"the acknowledgement of {request_id!r}")
    assert first["method"] == ACKNOWLEDGED, first
    return first["params"]["notifications"]


def is_of(message: dict[str, Any], request_id: Any) -> bool:
    """Whether it is a frame of this stream: that is told by its subscription id alone."""
    inside: dict[str, Any] = message.get("params") or message.get("result") or {}
    meta = inside.get("_meta", {})
    return SUBSCRIPTION_ID in meta and is_same(meta[SUBSCRIPTION_ID], request_id)


def stream_of(client: RawClient, request_id: Any) -> list[str]:
    """All frames of a stream that ever came: methods, with the URI of a resource, and ``result``."""
    return [said(message) for message in client.messages if is_of(message, request_id)]


def said(message: dict[str, Any]) -> str:
    if "method" not in message:
        return "result"
    uri = message.get("params", {}).get("uri")
    return message["method"] if uri is None else f"{message['method']} {uri}"


def asked_for(notifications: dict[str, Any]) -> set[str]:
    lists = {"toolsListChanged": TOOLS, "promptsListChanged": PROMPTS}
    uris = {f"{UPDATED} {uri}" for uri in notifications.get("resourceSubscriptions", ())}
    return {method for name, method in lists.items() if name in notifications} | uris


def test_mod_01_each_of_20_listen_streams_receives_only_the_changes_that_match_its_filter(start: Start) -> None:
    """The first message of each is its acknowledgement, ids keep their JSON type, only asked-for types arrive."""
    with start(revision=MODERN) as client:
        publishing = client.call_message("publish", {"changes": ["tools", "prompts", TEXT, NOTE], "n": 250})
        wanted = {(type(one), one): FILTERS[place % len(FILTERS)] for place, one in enumerate(IDS)}
        requests = [
            client.message("subscriptions/listen", {"notifications": filters}, id=one)
            for (_, one), filters in wanted.items()
        ]
        client.write(b"".join(json.dumps(message).encode() + b"\n" for message in [publishing, *requests]))
        for (_, one), filters in wanted.items():
            assert acknowledged(client, one) == filters
        client.text(publishing["id"])
        client.text(client.call("publish", {"changes": ["tools", "prompts", TEXT, NOTE]}))
        assert client.finish() == 0
        for (_, one), filters in wanted.items():
            first, *changes, cancelled, result = stream_of(client, one)
            assert (first, cancelled, result) == (ACKNOWLEDGED, CANCELLED, "result")
            assert set(changes) == asked_for(filters)
            assert [is_same(reply["id"], one) for reply in client.replies(one)] == [True]
        named = [m["params"]["requestId"] for m in client.messages if m.get("method") == CANCELLED]
        assert sorted(map(repr, named)) == sorted(map(repr, IDS))


@pytest.mark.parametrize(
    ("transport", "way"),
    [("stdio", "signal"), ("stdio", "end of input"), ("websocket", "signal"), ("http", "signal")],
)
def test_mod_02_listen_stream_ends_with_last_changes_then_cancelled_notification_then_result(
    start: Start, way: str
) -> None:
    """A WebSocket has no half that could be closed: who closes it hears no more."""
    with start(revision=MODERN) as client:
        listen(client, "s", toolsListChanged=True, resourceSubscriptions=[TEXT, NOTE])
        acknowledged(client, "s")
        changes = ["tools", TEXT, NOTE]
        if way == "signal":
            publishing = client.call("publish", {"changes": changes, "then": "end"})
        else:
            publishing = client.call("publish", {"changes": changes})
            client.wire.close_input()
        client.drain()
        assert client.wait() == 0
        assert len(client.replies(publishing)) == 1
        # A tool came and went: two changes of one list.
        told = [TOOLS, TOOLS, f"{UPDATED} {TEXT}", f"{UPDATED} {NOTE}"]
        assert stream_of(client, "s") == [ACKNOWLEDGED, *told, CANCELLED, "result"]
        cancel, result = [m for m in client.messages if is_of(m, "s")][-2:]
        assert is_same(cancel["params"]["requestId"], "s")
        assert is_same(result["id"], "s")
        assert result["result"]["resultType"] == "complete"


def test_mod_02_listen_streams_end_before_the_accepted_requests_when_the_server_drains(start: Start) -> None:
    with start(revision=MODERN, limits={"drain_timeout": 30.0}) as client:
        listen(client, "s", toolsListChanged=True)
        acknowledged(client, "s")
        slow = client.held()
        os.kill(client.pid, signal.SIGTERM)
        client.take(lambda m: is_of(m, "s") and "result" in m, "the end of the stream")
        client.let_go()
        client.drain()
        assert client.wait() == 0
        order = [said(m) if is_of(m, "s") else m.get("id") for m in client.messages if "result" in m or is_of(m, "s")]
        assert order == [ACKNOWLEDGED, CANCELLED, "result", slow]


def test_mod_03_legacy_requests_modern_requests_and_a_listen_stream_get_only_their_own_messages(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:
        client.result(client.request("logging/setLevel", {"level": "emergency"}))
        client.result(client.request("resources/subscribe", {"uri": NOTE}))
        client.revision = MODERN
        listen(client, "stream", promptsListChanged=True, resourceSubscriptions=[TEXT])
        acknowledged(client, "stream")
        modern = client.call("progress", {"values": list(range(1, 20)), "step_ms": 10}, token="modern")
        logging = client.call("log_all", log_level="critical")
        client.revision = LATEST_LEGACY
        legacy = client.call("progress", {"values": list(range(101, 120)), "step_ms": 10}, token="legacy")
        publishing = client.call("publish", {"changes": ["prompts", "tools", TEXT, NOTE], "n": 20})
        for call in (modern, logging, legacy, publishing):
            client.result(call)
        assert client.finish() == 0
        first, *changes, cancelled, result = stream_of(client, "stream")
        assert (first, cancelled, result) == (ACKNOWLEDGED, CANCELLED, "result")
        assert set(changes) == {PROMPTS, f"{UPDATED} {TEXT}"}
        on_streams = [m for m in client.messages if SUBSCRIPTION_ID in json.dumps(m)]
        assert all(is_of(message, "stream") for message in on_streams)
        free = {
            said(m) for m in client.messages if m.get("method") in (TOOLS, PROMPTS, UPDATED) and m not in on_streams
        }
        assert free <= {TOOLS, PROMPTS, f"{UPDATED} {NOTE}"}
        assert f"{UPDATED} {NOTE}" in free
        assert {params["progress"] for params in client.progress_of("modern")} <= set(range(1, 20))
        assert {params["progress"] for params in client.progress_of("legacy")} <= set(range(101, 120))
        assert [level for level, _ in client.logged()] == ["critical", "alert", "emergency", "emergency"]


def test_log_02_logs_of_a_call_are_sent_before_its_response_and_not_on_listen_streams(start: Start) -> None:
    with start(revision=MODERN) as client:
        listen(client, 1, toolsListChanged=True)
        acknowledged(client, 1)
        client.result(client.call("log_all"))
        assert client.logged() == []
        request_id = client.call("log_all", log_level="error")
        client.result(request_id)
        assert len(client.logged()) == 5
        assert client.messages[-1]["id"] == request_id
        assert stream_of(client, 1) == [ACKNOWLEDGED]
        assert client.finish() == 0
        assert len(client.logged()) == 5


def test_cancelled_listen_stream_gets_no_changes_and_its_id_can_be_reused(start: Start) -> None:
    with start(revision=MODERN) as client:
        listen(client, 1, toolsListChanged=True)
        acknowledged(client, 1)
        client.cancel(1)
        client.text(client.call("publish", {"changes": ["tools"]}))
        assert stream_of(client, 1) == [ACKNOWLEDGED]
        listen(client, 1, promptsListChanged=True)
        assert acknowledged(client, 1) == {"promptsListChanged": True}
        client.text(client.call("publish", {"changes": ["tools", "prompts"]}))
        assert stream_of(client, 1)[1:] == [ACKNOWLEDGED, PROMPTS, PROMPTS]
        client.cancel(1)
        client.silent_about(1)
        client.text(client.call("publish", {"changes": ["prompts"]}))  # read after the cancel, and before any signal
        assert client.finish() == 0


def test_request_with_the_id_of_an_open_listen_stream_is_refused_and_the_stream_continues(start: Start) -> None:
    with start(revision=MODERN) as client:
        listen(client, 1, toolsListChanged=True)
        acknowledged(client, 1)
        listen(client, 1, promptsListChanged=True)
        assert client.error(1)["code"] == -32600
        client.text(client.call("publish", {"changes": ["tools", "prompts"]}))
        assert stream_of(client, 1) == [ACKNOWLEDGED, TOOLS, TOOLS]


@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_listen_stream_that_is_not_read_uses_little_memory_and_does_not_delay_other_streams(start: Start) -> None:
    with start(revision=MODERN) as stuck, stuck.beside(MODERN) as other:
        listen(stuck, 1, toolsListChanged=True, resourceSubscriptions=[TEXT, NOTE])
        acknowledged(stuck, 1)
        listen(other, 1, toolsListChanged=True)
        acknowledged(other, 1)
        publish = {"changes": [TEXT, NOTE], "n": 10_000}
        other.text(other.call("publish", publish))  # what can be kept for it is full by now
        before = resident_bytes(other.pid)
        for _ in range(3):
            other.text(other.call("publish", publish))
        grown = resident_bytes(other.pid) - before
        assert grown < 4 * 1024 * 1024, f"60,000 changes, some 9 MB, made the server {grown} bytes larger"
        other.text(other.call("publish", {"changes": ["tools"]}))
        assert stream_of(other, 1) == [ACKNOWLEDGED, TOOLS, TOOLS]
        stuck.take(lambda m: said(m) == TOOLS, "the change that came last")


@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_listen_stream_ends_in_the_server_when_its_client_vanishes(start: Start) -> None:
    with start(revision=MODERN) as client:
        tasks = int(client.text(client.call("tasks")))
        with client.beside(MODERN) as other:
            for number in range(10):
                listen(other, number, toolsListChanged=True)
                acknowledged(other, number)
            assert int(client.text(client.call("tasks"))) >= tasks + 10
        wait_until(lambda: int(client.text(client.call("tasks"))) == tasks)
