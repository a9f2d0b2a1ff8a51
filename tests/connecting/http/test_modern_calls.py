"""Calls of a modern server: each is a POST of its own, answered by JSON or a stream (2026-07-28 Streamable HTTP)."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import pytest
import trio
import trio.testing
from tests.connecting.http.scripted import Answer, Got, Handler, discovered, error, modern, result, serving, text

from trio_mcp import (
    BadTarget,
    ConnectionLost,
    HTTPError,
    MCPError,
    PeerError,
    ProtocolViolation,
    open_http,
)
from trio_mcp.concurrency.time_limits import growing_delay

VERSION = "2026-07-28"


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def as_stream(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event(text(got))
    await answer.end()


@pytest.mark.parametrize("then", [as_json, as_stream])
async def test_client_of_a_modern_revision_reads_the_response_as_json_or_as_an_event_stream(then: Any) -> None:
    async with serving(modern(then)) as server, open_http(server.url, era="modern") as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names == ["server/discover", "tools/call"]


async def test_http_request_in_a_modern_revision_has_headers_with_method_name_and_protocol_version() -> None:
    async with (
        serving(modern(as_json)) as server,
        open_http(server.url, headers={"Authorization": "Bearer x"}) as client,
    ):
        await client.call_tool("look-up")
    for got in server.got:
        assert got.method == "POST"
        assert got.headers["content-type"] == "application/json"
        assert got.headers["accept"] == "application/json, text/event-stream"
        assert got.headers["mcp-protocol-version"] == VERSION
        assert got.headers["mcp-method"] == got.message["method"]
        assert got.headers["authorization"] == "Bearer x"
        assert got.message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == VERSION
        assert "mcp-session-id" not in got.headers
    assert server.named("tools/call")[0].headers["mcp-name"] == "look-up"
    assert "mcp-name" not in server.named("server/discover")[0].headers


@pytest.mark.parametrize(
    ("uri", "header"),
    [("file:///a%20b", "file:///a%20b"), ("file:///ü", "=?base64?ZmlsZTovLy/DvA==?=")],
)
async def test_mcp_name_header_of_a_resource_request_contains_the_resource_uri(uri: str, header: str) -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(result(got, resultType="complete", contents=[], ttlMs=0, cacheScope="private"))

    async with serving(modern(then)) as server, open_http(server.url) as client:
        await client.read_resource(uri)
    assert server.named("resources/read")[0].headers["mcp-name"] == header


async def test_mcp_name_header_of_a_prompt_request_contains_the_prompt_name() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(result(got, resultType="complete", messages=[]))

    async with serving(modern(then)) as server, open_http(server.url) as client:
        await client.get_prompt("greet")
    assert server.named("prompts/get")[0].headers["mcp-name"] == "greet"


async def test_client_reports_progress_and_logs_of_the_response_stream_before_the_result() -> None:
    async def then(got: Got, answer: Answer) -> None:
        token = got.message["params"]["_meta"]["progressToken"]
        await answer.open()
        for step in (1, 2):
            await answer.event(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": step},
                }
            )
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hello"}}
        await answer.event(log)
        await answer.event(text(got))
        await answer.end()

    steps, logs = list[float](), list[Any]()
    async with (
        serving(modern(then)) as server,
        open_http(server.url, on_log=lambda told: logs.append(told.data)) as client,
    ):
        await client.call_tool("any", on_progress=lambda told: steps.append(told.progress))
        assert (steps, logs) == ([1, 2], ["hello"])


async def test_concurrent_http_calls_do_not_wait_for_each_other() -> None:
    asked = list[Any]()
    second = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        asked.append(got.message["params"]["name"])
        if asked[-1] == "first":
            await second.wait()
        await answer.json(text(got))
        second.set()

    async with serving(modern(then)) as server, open_http(server.url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "first")
        await server.until("tools/call")
        await client.call_tool("second")
    assert asked == ["first", "second"]


async def test_http_connection_is_reused_by_later_calls() -> None:
    async with serving(modern(as_stream)) as server, open_http(server.url) as client:
        for _ in range(5):
            await client.call_tool("any")
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert server.connections == 1


# Leaving


@pytest.mark.parametrize("streams", [False, True], ids=["silent", "streaming"])
async def test_cancelled_call_in_a_modern_revision_closes_the_http_response_and_sends_no_cancel_notification(
    streams: bool,
) -> None:
    gone = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        if got.message["params"]["name"] == "quick":
            await answer.json(text(got))
            return
        if streams:
            await answer.open()
        await answer.gone()
        gone.set()

    async with serving(modern(then)) as server, open_http(server.url) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await server.until("tools/call")
            nursery.cancel_scope.cancel(reason="the test leaves the call")
        await gone.wait()
        assert (await client.call_tool("quick")).text == "done"
    assert server.names == ["server/discover", "tools/call", "tools/call"]


async def test_cancelled_modern_revision_call_closes_the_http_response_even_without_cancel_notifications() -> None:
    gone = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        await answer.gone()
        gone.set()

    async with serving(modern(then)) as server, open_http(server.url, send_cancels=False) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await server.until("tools/call")
            nursery.cancel_scope.cancel(reason="the test leaves the call")
        await gone.wait()


async def test_closing_the_client_closes_all_http_responses() -> None:
    gone = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.gone()
        gone.set()

    async with serving(modern(then)) as server:
        async with open_http(server.url) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await server.until("tools/call")
            nursery.cancel_scope.cancel()
        await gone.wait()


# Failures


async def accepted(got: Got, answer: Answer) -> None:
    await answer.whole(202)


async def empty(got: Got, answer: Answer) -> None:
    await answer.whole(200)


async def empty_json(got: Got, answer: Answer) -> None:
    await answer.whole(200, b"", content_type="application/json")


async def page(got: Got, answer: Answer) -> None:
    await answer.whole(200, b"<title>Log in</title><p>to go on</p>", content_type="text/html; charset=utf-8")


async def bad_gateway(got: Got, answer: Answer) -> None:
    body = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1><hr>nginx</body></html>"
    await answer.whole(502, body, content_type="text/html")


async def without_words(got: Got, answer: Answer) -> None:
    await answer.whole(403)


async def elsewhere(got: Got, answer: Answer) -> None:
    await answer.whole(307, location="http://other.example/mcp")


async def foreign(got: Got, answer: Answer) -> None:
    await answer.json({"jsonrpc": "2.0", "id": 4711, "result": {}})


async def foreign_on_a_stream(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event({"jsonrpc": "2.0", "id": str(got.message["id"]), "result": {}})
    await answer.gone()


async def ends_early(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
    await answer.end()


async def ends_early_with_ids(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event("", id="1", retry=1)
    await answer.end()


async def cut(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.cut()


async def cut_in_json(got: Got, answer: Answer) -> None:
    await answer.head(200, {"content-type": "application/json", "content-length": "100"}, b'{"jsonrpc"')
    await answer.cut()


async def hung_up(got: Got, answer: Answer) -> None:
    await answer.cut()


async def no_http(got: Got, answer: Answer) -> None:
    await answer.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


async def untyped(got: Got, answer: Answer) -> None:
    await answer.whole(200, b"data: x")


async def refused_in_words(got: Got, answer: Answer) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "not today"}}
    await answer.json(body, 400)


@pytest.mark.parametrize(
    ("then", "status", "told"),
    [
        (accepted, 202, r"accepted a request \(HTTP status 202\)"),
        (empty, 200, "HTTP status 200 and an empty body$"),
        (empty_json, 200, "HTTP status 200 and an empty body$"),
        (page, 200, r"status 200 and the Content-Type text/html; it must be application/json or .*: Log in to go on"),
        (untyped, 200, r"status 200 and no Content-Type; it must be application/json or text/event-stream: data: x"),
        (bad_gateway, 502, r"^the server answered with HTTP status 502 \(Bad Gateway\): 502 Bad Gateway nginx$"),
        (without_words, 403, r"^the server answered with HTTP status 403 \(Forbidden\)$"),
        (elsewhere, 307, r"HTTP status 307 .* to http://other.example/mcp, which isn.t followed$"),
        (foreign, 200, "contains the reply to another request, with id 4711"),
        (foreign_on_a_stream, 200, "contains the reply to another request, with id '2'"),
        (ends_early, 200, "ended without a reply"),
        (ends_early_with_ids, 200, "ended without a reply"),
        (cut, 200, "closed the connection before the response was complete"),
        (cut_in_json, 200, "closed the connection before the response was complete"),
        (hung_up, None, "closed"),
        (no_http, None, "no valid HTTP"),
        (refused_in_words, 400, r"HTTP status 400 \(Bad Request\): not today \(-32000\)$"),
    ],
)
async def test_http_response_without_a_json_rpc_reply_fails_only_its_call(
    then: Any, status: int | None, told: str
) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        await (as_json if got.message["params"]["name"] == "good" else then)(got, answer)

    async with serving(modern(handler)) as server, open_http(server.url) as client:
        with pytest.raises(HTTPError, match=told) as caught:
            await client.call_tool("bad")
        assert caught.value.status == status
        assert client.lost is None
        assert (await client.call_tool("good")).text == "done"
    assert server.names.count("tools/call") == 2, "nothing is sent again"


@pytest.mark.parametrize(
    ("status", "location", "place"),
    [
        (301, "/mcp/", "URL/mcp/"),
        (302, "/login?next=/mcp&token=secret", "URL/login"),
        (303, "other#secret", "URL/other"),
        (307, "https://mcp.example/v2/mcp", "https://mcp.example/v2/mcp"),
        (308, "//mcp.example/", "http://mcp.example/"),
        (307, "https://user:secret@mcp.example:8443/x?secret", "https://mcp.example:8443/x"),
        (307, f"https://mcp.example/{'x' * 3000}secret", f"https://mcp.example/{'x' * 280}"),
    ],
)
async def test_error_for_a_redirect_that_is_not_followed_names_its_location(
    status: int, location: str, place: str
) -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.whole(status, b"Moved", location=location)

    async with serving(then) as server:
        with pytest.raises(HTTPError) as caught:
            async with open_http(server.url):
                pass
    place = place.replace("URL", server.url.removesuffix("/mcp"))
    assert f") to {place}, which isn't followed: Moved" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "",
        "javascript:secret",
        "data:text/html,secret",
        "http://[secret",
        "mailto:a@secret",
        f"https://{'secret' * 1500}@a.example/",
    ],
)
async def test_redirect_error_without_a_usable_location_contains_only_the_status(location: str) -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.whole(302, location=location)

    async with serving(then) as server:
        with pytest.raises(HTTPError, match=r"status 302 \(Found\)$"):
            async with open_http(server.url):
                pass


async def test_error_for_a_url_with_credentials_advises_to_use_a_header() -> None:
    async with serving(modern(as_json)) as server:
        url = server.url.replace("//", "//user:secret@")
        with pytest.raises(BadTarget) as refused:
            async with open_http(url):
                pass
        assert "secret" not in str(refused.value)
        assert "headers={'Authorization': 'Basic ...'}" in str(refused.value)
        async with open_http(server.url, headers={"Authorization": "Basic dXNlcjpzZWNyZXQ="}):
            pass
    assert server.got[0].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="


async def garbage(got: Got, answer: Answer) -> None:
    await answer.whole(200, b"surprise", content_type="application/json")


async def garbage_on_a_stream(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event("surprise")
    await answer.gone()


async def too_long(got: Got, answer: Answer) -> None:
    await answer.json(text(got, "x" * 2_000))


async def too_long_on_a_stream(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event(text(got, "x" * 2_000))
    await answer.gone()


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (garbage, "cannot be read: not JSON"),
        (garbage_on_a_stream, "cannot be read: not JSON"),
        (too_long, "is longer than 1000 bytes"),
        (too_long_on_a_stream, "the event is longer than 1000 bytes"),
    ],
)
async def test_unreadable_http_answer_raises_protocol_violation(then: Any, told: str) -> None:
    from trio_mcp import Limits

    async with serving(modern(then)) as server, open_http(server.url, limits=Limits(max_message_bytes=1000)) as client:
        with pytest.raises(ProtocolViolation, match=told):
            await client.call_tool("bad")
        assert client.lost is None


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_json_rpc_error_reply_raises_peer_error_whatever_the_http_status(status: int) -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(error(got, -32601, "nothing there", name="x"), status)

    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("bad")
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32601, "nothing there", {"name": "x"})


async def test_error_without_an_id_in_an_http_response_fails_the_request_of_that_response() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json({"jsonrpc": "2.0", "error": {"code": -32603, "message": "broken"}})

    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError, match="broken"):
            await client.call_tool("bad")


async def test_http_client_does_not_answer_requests_of_a_modern_server() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
        await answer.event(text(got))
        await answer.end()

    async with serving(modern(then)) as server, open_http(server.url, roots=[]) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names == ["server/discover", "tools/call"]


async def test_http_error_truncates_a_long_response_body() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.whole(500, "ä\n".encode() * 10_000)

    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("bad")
    assert len(caught.value.body) == 500
    assert caught.value.body.startswith("ä ä ")


async def test_call_to_a_stopped_http_server_raises_http_error() -> None:
    async with serving(modern(as_json)) as server, open_http(server.url) as client:
        await server.stop()
        with pytest.raises(HTTPError, match="no connection") as caught:
            await client.call_tool("any")
        assert caught.value.status is None
        assert client.lost is None


# What is given


@pytest.mark.parametrize(
    ("headers", "agent"),
    [({}, f"trio-mcp/{version('trio-mcp')}"), ({"user-agent": "mine/1"}, "mine/1"), ({"User-Agent": ""}, None)],
)
async def test_http_client_sends_its_user_agent_if_the_user_sets_no_other(
    headers: dict[str, str], agent: str | None
) -> None:
    async with serving(modern(as_json)) as server, open_http(server.url, headers=headers) as client:
        await client.call_tool("any")
    assert [got.headers.get("user-agent") for got in server.got] == [agent, agent]


@pytest.mark.parametrize(
    "name",
    [
        *("MCP-Protocol-Version", "mcp-method", "Mcp-Name", "Mcp-Param-Region", "mcp-session-id", "Last-Event-ID"),
        *("Content-Type", "Accept", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Accept-Encoding"),
    ],
)
async def test_http_client_raises_if_the_user_sets_protocol_headers(name: str) -> None:
    with pytest.raises(ValueError, match=f"the header {name} is reserved: the client writes it itself"):
        async with open_http("http://127.0.0.1:1/mcp", headers={name: "x"}):
            pass


@pytest.mark.parametrize(
    ("name", "value"), [("a b", "x"), ("", "x"), ("a", "x\r\nb: c"), ("a", "secret "), ("a", "\N{SNOWMAN}")]
)
async def test_error_for_invalid_headers_does_not_contain_their_values(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="header") as caught:
        async with open_http("http://127.0.0.1:1/mcp", headers={name: value}):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://h/mcp", "http:///mcp", "http://u:p@h/mcp", "http://h:99999/", "http://a..b/"])
async def test_invalid_http_url_raises_bad_target(url: str) -> None:
    with pytest.raises(BadTarget):
        async with open_http(url):
            pass


async def test_http_connect_without_a_listener_raises_connection_lost() -> None:
    with pytest.raises(ConnectionLost, match=r"no connection to 127\.0\.0\.1:9"):
        async with open_http("http://127.0.0.1:9/mcp", http_proxy=None):
            pass


async def test_http_client_waits_for_a_silent_server_until_connect_timeout() -> None:
    async def silent(got: Got, answer: Answer) -> None:
        await answer.gone()

    async with serving(silent) as server:
        with pytest.raises(trio.TooSlowError, match="was not ready"):
            async with open_http(server.url, connect_timeout=0.1):
                pass
    assert server.names == ["server/discover"], "silence says nothing of the era"


# Streams of changes


def acknowledged(got: Got) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": got.message["id"]}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}


def changed(got: Got) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": got.message["id"]}
    return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}


async def test_subscription_stream_closes_at_the_end_of_the_listen_with_block() -> None:
    gone = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event(acknowledged(got))
        await answer.chunk(b": alive\n\n")
        await answer.event(changed(got))
        await answer.gone()
        gone.set()

    async with serving(modern(then)) as server, open_http(server.url) as client:
        async with client.listen(tools=True) as changes:
            assert (await changes.__anext__()).kind == "tools"
        await gone.wait()
    assert server.names == ["server/discover", "subscriptions/listen"]


async def test_client_reports_list_changes_after_it_reopens_a_broken_subscription_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trio_mcp.client import subscriptions

    monkeypatch.setattr(subscriptions, "growing_delay", partial(growing_delay, first=0.01))
    kinds = list[str]()
    told = trio.Event()

    def on_list_changed(kind: str) -> None:
        kinds.append(kind)
        told.set()

    async def then(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event(acknowledged(got))
        if len(server.named("subscriptions/listen")) == 1:
            await answer.cut()
        else:
            await answer.gone()

    tools = {"listChanged": True}
    async with serving(modern(then, tools=tools)) as server, open_http(server.url, on_list_changed=on_list_changed):
        await told.wait()
    assert kinds == ["tools"]
    assert server.names == ["server/discover", "subscriptions/listen", "subscriptions/listen"]


async def test_subscription_stream_that_ends_without_a_reply_raises_http_error() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event(acknowledged(got))
        await answer.end()

    async with (
        serving(modern(then)) as server,
        open_http(server.url) as client,
        client.listen(tools=True) as changes,
    ):
        with pytest.raises(HTTPError, match="ended without a reply"):
            await changes.__anext__()


async def test_client_accepts_an_event_stream_as_response_to_discover() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event(discovered(got))
        await answer.end()

    async with serving(handler) as server, open_http(server.url) as client:
        assert client.revision.name == VERSION


@pytest.mark.parametrize(("body", "kind"), [(b"slow down", "text/plain"), (b"{", "application/json")])
async def test_http_error_contains_the_retry_after_seconds(body: bytes, kind: str) -> None:
    async def busy(got: Got, answer: Answer) -> None:
        await answer.whole(429, body, content_type=kind, retry_after="7")

    async def unavailable(got: Got, answer: Answer) -> None:
        await answer.whole(503)

    for handler, seconds in ((busy, 7), (unavailable, None)):
        async with serving(modern(handler)) as server, open_http(server.url) as client:
            with pytest.raises(HTTPError) as caught:
                await client.call_tool("any")
            assert caught.value.retry_after == seconds


NASTY = "a\x1b[31m\r\nforged: line\x9b\u2028z"


async def nasty_type(got: Got, answer: Answer) -> None:
    await answer.raw(b"HTTP/1.1 200 \x1b[31mOK\r\nContent-Type: text/\x1b[31m\x9bhtml\r\nContent-Length: 1\r\n\r\nx")


async def nasty_error(got: Got, answer: Answer) -> None:
    await answer.json({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": NASTY}}, 400)


async def nasty_words(got: Got, answer: Answer) -> None:
    await answer.whole(502, NASTY.encode())


async def nasty_status(got: Got, answer: Answer) -> None:
    await answer.raw(b"HTTP/1.1 2\x1b[31m0 OK\r\n\r\n")


async def nasty_reply(got: Got, answer: Answer) -> None:
    await answer.json(error(got, -32000, NASTY))


@pytest.mark.parametrize("then", [nasty_type, nasty_error, nasty_words, nasty_status, nasty_reply])
async def test_server_messages_in_errors_contain_no_control_characters(then: Handler) -> None:
    async with serving(modern(then)) as server, open_http(server.url) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("any")
    assert str(caught.value).isprintable()
