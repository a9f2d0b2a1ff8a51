"""RPC: ids and frames, against a server in another process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.interaction.raw_client import (
    LATEST_LEGACY,
    LEGACY,
    MODERN,
    REVISIONS,
    RawClient,
    Start,
    across,
    is_same,
)

IDS: list[Any] = [0, -1, 1, "1", "", 2**53 + 1, 10**25, -(10**25), "x" * 4096, "🦑", "\u2028", '"\\\n\x00']
NO_IDS: list[Any] = [None, True, False, 1.5, 1.0, [], {}, [1]]


def refusal(client: RawClient) -> dict[str, Any]:
    """The next message, which must be an error under a null id; its code."""
    message = client.take(lambda m: "method" not in m and m.get("id", ...) is None, "an error under null")
    return message["error"]["code"]


def test_rpc_02_request_id_can_be_reused_after_the_request_is_answered(client: RawClient) -> None:
    for text in ("first", "second", "third"):
        assert client.text(client.call("echo", {"text": text}, id=7)) == text
    assert client.error(client.request("no/such", id=7))["code"] == -32601
    assert client.text(client.call("echo", {"text": "after an error"}, id=7)) == "after an error"


def test_rpc_02_id_of_cancelled_request_can_be_reused_during_its_cleanup(client: RawClient) -> None:
    client.started("cleanup", {"ms": 600}, id=7)
    client.cancel(7)
    client.journal.wait_for("cleaning", call=7)
    assert client.text(client.call("echo", {"text": "new"}, id=7)) == "new"
    client.call("sleep", {"ms": 60_000}, id=7)
    client.journal.wait_for("start", call=7, tool="sleep")
    client.cancel(7, "the second one")
    (cancelled,) = client.journal.wait_for("cancelled", call=7, tool="sleep")
    assert cancelled["reason"] == "the second one"
    (older,) = client.journal.wait_for("cancelled", call=7, tool="cleanup")
    assert older["reason"] == "user"
    assert client.finish() == 0
    assert len(client.replies(7)) == 1


def test_rpc_02_cancelled_request_that_ends_does_not_free_an_id_in_use_by_a_new_request(client: RawClient) -> None:
    client.started("cleanup", {"ms": 200}, id=7)
    client.cancel(7)
    client.call("sleep", {"ms": 60_000}, id=7)
    client.journal.wait_for("start", call=7, tool="sleep")
    client.journal.wait_for("finally", call=7, tool="cleanup")
    client.ping()
    client.cancel(7)
    client.journal.wait_for("cancelled", call=7, tool="sleep")
    assert client.finish() == 0
    assert client.replies(7) == []


def test_rpc_02_request_with_an_id_in_flight_is_refused_and_the_first_request_continues(
    client: RawClient,
) -> None:
    client.held(id=7)
    assert client.error(client.call("echo", {"text": "again"}, id=7))["code"] == -32600
    assert client.text(client.call("echo", {"text": "another type"}, id="7")) == "another type"
    client.let_go()
    assert client.text(7) == "let go"


def test_rpc_03_replies_keep_type_and_value_of_request_id(client: RawClient) -> None:
    for request_id in IDS:
        client.call("echo", {"text": repr(request_id)[:20]}, id=request_id)
        assert client.text(request_id) == repr(request_id)[:20]
        client.request("no/such", id=request_id)
        assert client.error(request_id)["code"] == -32601
    replies = [m["id"] for m in client.messages if "method" not in m][-2 * len(IDS) :]
    assert all(is_same(came, sent) for came, sent in zip(replies, [i for i in IDS for _ in "12"], strict=True))


def test_rpc_04_request_with_invalid_id_is_refused_and_not_run(client: RawClient) -> None:
    for no_id in NO_IDS:
        client.call("sleep", {"ms": 0}, id=no_id)
        assert refusal(client) == -32600, no_id
    client.write(b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}\n')
    assert refusal(client) in (-32600, -32700)
    client.ping()
    assert client.finish() == 0
    assert sum("error" in m for m in client.messages) == len(NO_IDS) + 1, "exactly one error each"
    assert client.journal.entries(tool="sleep") == []


FRAMES: list[tuple[bytes, int]] = [
    (b"{bad", -32700),
    (b'{"jsonrpc":"2.0","id":1,"meth', -32700),
    (b"{'jsonrpc':'2.0','id':1,'method':'ping'}", -32700),
    (b'\x00{"jsonrpc":"2.0","id":1,"method":"ping"}', -32700),
    (b"NaN", -32700),
    (b"[" * 100_000, -32700),
    (b'{"a":' * 100_000, -32700),
    (b"42", -32600),
    (b'"x"', -32600),
    (b"null", -32600),
    (b"true", -32600),
    (b"[]", -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"2.0"}', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
]


def test_rpc_05_each_line_that_is_not_a_json_rpc_message_gets_one_error(client: RawClient) -> None:
    for frame, code in FRAMES:
        client.write(frame + b"\n")
        assert refusal(client) == code, frame[:60]
    client.ping()
    assert client.finish() == 0
    assert sum("error" in m for m in client.messages) == len(FRAMES)


BLANKS = (b"\n", b"\r\n", b"  \t \n", b"\n\n\n")


@pytest.mark.parametrize("transport", ["stdio", "tcp"])
def test_rpc_05_blank_lines_are_ignored(client: RawClient) -> None:
    for blank in BLANKS:
        client.write(blank)
    client.ping()
    assert client.finish() == 0
    assert not [m for m in client.messages if "error" in m]


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_rpc_05_blank_message_or_body_gets_parse_error(client: RawClient) -> None:
    for blank in BLANKS:
        client.write(blank)
        for _ in range(blank.count(b"\n")):
            assert refusal(client) == -32700
    client.ping()
    assert client.finish() == 0


def test_rpc_05_request_with_wrong_json_rpc_version_gets_an_error_with_its_id(client: RawClient) -> None:
    for version in ('"1.0"', '"2"', "2.0", "null", None):
        member = "" if version is None else f'"jsonrpc":{version},'
        client.write(f'{{{member}"id":31,"method":"ping"}}\n'.encode())
        assert client.error(31)["code"] == -32600
        client.write(f'{{{member}"id":32,"method":7}}\n'.encode())
        assert client.error(32)["code"] == -32600
    client.ping()


def test_rpc_05_request_with_invalid_json_gets_an_error_with_its_id(client: RawClient) -> None:
    call = '{"jsonrpc":"2.0","id":31,"method":"tools/call","params":{"name":"echo","arguments":{"text":%s}}'
    bad = ['"cut \\ud83d"}', "1e400}", "NaN}", "[" * 5000 + "]" * 5000 + "}", '"truncated', '"x"}} trailing']
    for text in bad:
        client.write((call % text).encode() + b"\n")
        assert client.error(31)["code"] == -32700, text[:20]
    client.ping()
    assert client.finish() == 0
    assert client.journal.entries(tool="echo") == []


def test_rpc_05_request_with_params_that_are_not_an_object_gets_an_error_with_its_id(client: RawClient) -> None:
    for number, params in enumerate(([], [1], "x", 1, True)):
        client.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        assert client.error(number)["code"] == -32602
    client.ping()


@pytest.mark.parametrize(("transport", "revision"), across(REVISIONS))
def test_rpc_05_batches_are_served_only_in_revisions_with_batches(start: Start, revision: str) -> None:
    with start(revision=revision) as client:
        members = [
            client.call_message("echo", {"text": "a"}, id="a"),
            client.call_message("echo", {"text": "b"}, id="b"),
        ]
        client.send(members)
        if revision in ("2024-11-05", "2025-03-26"):
            assert [client.text(name) for name in "ab"] == ["a", "b"]
            assert len(client.batches) == 1, "the replies come in one array"
        else:
            assert refusal(client) == -32600
        client.ping()
        assert client.finish() == 0
        assert len(client.replies("a")) == (revision in LEGACY[:2])


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY[:2]))
def test_rpc_05_requests_in_a_batch_are_answered_independently(start: Start, revision: str) -> None:
    with start(revision=revision) as client:
        client.started("sleep", {"ms": 60_000}, id="victim")
        client.send([
            client.call_message("echo", {"text": "good"}, id=1),
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "victim"}},
            42,
            {"jsonrpc": "2.0", "id": None, "method": "ping"},
            {"jsonrpc": "1.0", "id": 2, "method": "ping"},
            client.message("no/such", id=3),
            client.call_message("echo", {"text": "the same id"}, id=1),
            client.message("initialize", client.opening(revision), id=4),
            {"jsonrpc": "2.0", "id": 4711, "result": {}},
            client.call_message("sleep", {"ms": 60_000}, id=5),
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}},
        ])  # fmt: skip
        client.journal.wait_for("cancelled", call="victim")
        client.reply(3)  # and with it all others
        client.ping()
        (batch,) = client.batches
        codes = sorted((str(m["id"]), m.get("error", {}).get("code", 0)) for m in batch)
        assert codes == [
            ("1", -32600),
            ("1", 0),
            ("2", -32600),
            ("3", -32601),
            ("4", -32600),
            ("None", -32600),
            ("None", -32600),
        ]
        assert client.finish() == 0


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY[:2]))
def test_rpc_05_batch_of_notifications_gets_no_reply_and_a_batch_beyond_the_limit_gets_an_error(
    start: Start, revision: str
) -> None:
    with start(revision=revision) as client:
        before = len(client.messages)
        client.send([{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 5)
        client.ping()
        assert len(client.messages) == before + 1, "a batch of notifications has no replies"
        client.send([client.message("ping", id=number) for number in range(101)])  # see max_batch
        assert refusal(client) == -32600
        assert client.finish() == 0
        assert client.batches == []


def test_rpc_06_unknown_methods_are_refused_and_unknown_notifications_ignored(client: RawClient) -> None:
    for method in ("no/such", "", "tools/CALL", "sampling/createMessage", "rpc.discover", "notifications/initialized"):
        assert client.error(client.request(method))["code"] == -32601, method
    before = len(client.messages)
    client.notify("notifications/no/such")
    client.notify("no/such", {"a": 1})
    client.notify("tools/call", {"name": "sleep", "arguments": {"ms": 0}})
    client.notify("notifications/initialized", [1, 2])
    client.notify("notifications/initialized", "text")
    client.notify("notifications/progress", {"progressToken": [], "progress": "much"})
    client.notify("notifications/progress")
    client.notify("notifications/roots/list_changed", {"_meta": 1})
    client.notify("notifications/message", {"level": "info", "data": 1})
    client.notify("")
    client.ping()
    assert len(client.messages) == before + 1
    assert client.finish() == 0
    assert client.stderr() == ""
    assert client.journal.entries(tool="sleep") == []


def test_rpc_06_modern_request_with_a_legacy_method_or_legacy_with_a_modern_method_is_refused(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:
        assert client.error(client.request("server/discover"))["code"] == -32601
        client.revision = MODERN
        for method in ("ping", "logging/setLevel", "resources/subscribe"):
            assert client.error(client.request(method, {"level": "debug", "uri": "fixture://text"}))["code"] == -32601
        assert set(client.result(client.request("server/discover"))["supportedVersions"]) == {MODERN}


def test_rpc_06_sv_04_modern_request_with_unsupported_version_is_refused(start: Start) -> None:
    with start(revision=MODERN) as client:
        key = "io.modelcontextprotocol/protocolVersion"
        for version in ("2099-01-01", "", LATEST_LEGACY):
            error = client.error(client.request("tools/list", meta={key: version}))
            assert error["code"] == -32022
            assert error["data"] == {"supported": [MODERN], "requested": version}
        assert client.error(client.request("tools/list", meta={key: 7}))["code"] == -32602
        bare = json.loads(json.dumps(client.message("tools/list")))
        del bare["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        client.send(bare)
        assert client.error(bare["id"])["code"] == -32602
        assert client.echo("fine") == "fine"
