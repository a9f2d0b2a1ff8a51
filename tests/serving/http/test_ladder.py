"""What the endpoint answers to each request, built by hand and sent through a real socket.

First the ladder of checks, in their order; then what the revisions say of legacy servers (transports, Streamable HTTP)
and of modern ones (2026-07-28 Streamable HTTP), sentence by sentence.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import attrs
import pytest
import trio
from tests.patience import LONG, PATIENCE
from tests.serving.http.raw_http import (
    CAPABILITIES,
    LEGACY,
    MODERN,
    Answer,
    Endpoint,
    Events,
    Wire,
    initialize,
    modern,
    open_endpoint,
)

from trio_mcp import (
    CancelCause,
    Header,
    Limits,
    PeerError,
    RequestContext,
    Server,
    http_app,
    serve_http,
    serve_websocket,
)
from trio_mcp.diagnostics.log_shares import BURST

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


@attrs.define
class Watched:
    """A server, and what its handlers went through."""

    server: Server[Any]
    started: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    causes: list[CancelCause | None] = attrs.field(factory=list[Any])
    go_on: trio.Event = attrs.field(factory=trio.Event)
    seen: list[Any] = attrs.field(factory=list[Any])

    async def until_ended(self) -> CancelCause | None:
        with trio.fail_after(PATIENCE):
            await self.ended.wait()
        return self.causes[-1]

    async def until_started(self) -> None:
        with trio.fail_after(PATIENCE):
            await self.started.wait()


def watched_server() -> Watched:
    server = Server("watched")
    watched = Watched(server)

    @server.tool
    async def echo(text: str = "") -> str:
        return text

    @server.tool
    async def hang(ctx: RequestContext, say_something: bool = False) -> str:
        """Says something, perhaps, and waits until the test lets it go on."""
        if say_something:
            ctx.progress(1, 2)
        watched.started.set()
        try:
            await watched.go_on.wait()
            return "gone on"
        finally:
            watched.causes.append(None if ctx.cancellation is None else ctx.cancellation.cause)
            watched.ended.set()

    @server.tool
    async def poll(ctx: RequestContext) -> str:
        """Lets the client come back for the result, where that is possible."""
        watched.seen.append(ctx.close_stream(retry=0.25))
        watched.started.set()
        await watched.go_on.wait()
        return "worth it"

    @server.tool
    async def tell(ctx: RequestContext) -> str:
        ctx.progress(1, 2)
        await ctx.log.info("hello")
        return "told"

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        """Asks the user."""
        return str(await ctx.elicit("Which?", {"type": "object", "properties": {}}))

    @server.tool
    async def fail() -> str:
        raise PeerError(-32601, "somebody else has no such method")

    @server.tool
    async def region(region: Annotated[str, Header("Region")] = "eu") -> str:
        return region

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        return {"session": ctx.session_id, "header": (ctx.headers or {}).get("X-Mine")}

    @server.tool
    async def change(ctx: RequestContext) -> str:
        """Changes the list of tools."""

        async def another() -> str:
            return ""

        server.tool(name=f"another-{len(server._tools.registry)}")(another)
        return "changed"

    @server.resource("watched:thing")
    async def thing() -> str:
        return "a thing"

    @server.prompt
    async def hello() -> str:
        return "hello"

    return watched


@asynccontextmanager
async def serving(limits: Limits | None = None, **options: Any) -> AsyncGenerator[tuple[Endpoint, Watched]]:
    watched = watched_server()
    async with open_endpoint(watched.server, limits, **options) as endpoint:
        yield endpoint, watched


def call(tool: str, *, id: Any = 1, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """A call of a legacy client."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def modern_call(tool: str, *, id: Any = 1, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    return modern("tools/call", {"name": tool, "arguments": arguments}, id=id, **(meta or {}))


def text_of(reply: dict[str, Any]) -> str:
    return reply["result"]["content"][0]["text"]


# 0. Host and Origin


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1@evil.example", "[::2]:{port}"],
)
@pytest.mark.parametrize("target", ["/mcp", "/other"])
async def test_request_with_a_disallowed_host_always_gets_status_403(host: str, target: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list"), {"Host": host.format(port=endpoint.port)}, target=target)
        assert answer.status == 403


async def test_response_and_log_name_a_rejected_host_or_origin_and_the_log_is_rate_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as (endpoint, _):
        for name, value in (("Host", "evil.example"), ("Origin", "https://evil.example")):
            answers = [await endpoint.ask(modern("tools/list"), {name: value}) for _ in range(2 * BURST)]
            assert {answer.status for answer in answers} == {403}
            assert f"the {name} {value!r} is not allowed" in answers[0].body.decode()
            assert f"{name.lower()}s=" in answers[0].body.decode()
            told = [record.getMessage() for record in caplog.records if repr(value) in record.getMessage()]
            assert told == [f"refused a request (403): its {name} {value!r} is not in allowed_{name.lower()}s="] * BURST
        answer = await endpoint.ask(modern("tools/list"), {"Host": "127.0.0.1@user:secret"})
        assert answer.status == 403
        assert "secret" not in answer.body.decode() + caplog.text


async def test_allowed_host_with_a_port_wildcard_is_served_on_any_port() -> None:
    async with serving(allowed_origins=[], allowed_hosts=["127.0.0.1:*"]) as (endpoint, _):
        for host in ("127.0.0.1", f"127.0.0.1:{endpoint.port}", "127.0.0.1:1"):
            assert (await endpoint.ask(modern("tools/list"), {"Host": host})).status == 200


@pytest.mark.parametrize("serve", [serve_http, serve_websocket])
@pytest.mark.parametrize("entry", ["*", "*.example", "https://mcp.example", "", "a b", "mcp.example/mcp", "a:70000"])
async def test_allowed_hosts_entry_that_matches_no_client_raises_at_start(serve: Any, entry: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_hosts= has .*, which matches no client: "):
        await serve(watched_server().server, "127.0.0.1", 0, allowed_origins=[], allowed_hosts=[entry])
    with pytest.raises(ValueError, match=r"allowed_hosts= has .*, which matches no client: "):
        http_app(watched_server().server, allowed_origins=[], allowed_hosts=[entry])


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
async def test_requests_to_local_host_names_are_served(host: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list"), {"Host": host.format(port=endpoint.port)})
        assert answer.status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example", "null", "", "file://"])
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS", "PUT"])
async def test_request_from_a_disallowed_origin_gets_status_403_for_every_http_method(origin: str, method: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(None, {"Origin": origin}, method=method)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers


async def test_allowed_origin_receives_cors_headers_on_every_response() -> None:
    page = {"Origin": "https://app.example"}
    async with serving(allowed_origins=["https://app.example"], allowed_hosts=["127.0.0.1"]) as (endpoint, _):
        answers = [
            await endpoint.ask(modern("tools/list"), page),
            await endpoint.ask(modern("tools/lost"), page),
            await endpoint.ask(b"{", page),
            await endpoint.ask(None, page, method="PUT"),
            await endpoint.ask(None, page, method="GET"),
            await endpoint.ask(None, page, target="/other"),
            await endpoint.ask(modern_call("tell", meta={"progressToken": 1}), page),
        ]
        assert [answer.status for answer in answers] == [200, 404, 400, 405, 400, 404, 200]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == "https://app.example", answer
            assert "origin" in answer.headers["vary"].lower()


PREFLIGHT = {
    "Origin": "https://app.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type,mcp-protocol-version,mcp-param-region,x-other",
}


async def test_preflight_of_an_allowed_origin_lists_methods_and_headers() -> None:
    async with serving(allowed_origins=["https://app.example"], allowed_hosts=["127.0.0.1"]) as (endpoint, _):
        answer = await endpoint.ask(None, PREFLIGHT, method="OPTIONS")
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        methods = answer.headers["access-control-allow-methods"].split(", ")
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert set(methods) >= {"POST", "GET", "DELETE"}
        for name in (
            *("content-type", "accept", "authorization", "mcp-protocol-version", "mcp-session-id", "last-event-id"),
            *("mcp-method", "mcp-name", "mcp-param-region"),
        ):
            assert name in allowed
        assert "x-other" not in allowed
        assert answer.headers["access-control-max-age"].isdigit()
        assert "access-control-allow-private-network" not in answer.headers


async def test_preflight_allows_private_network_access() -> None:
    async with serving(allowed_origins=["https://app.example"], allowed_hosts=["127.0.0.1"]) as (endpoint, _):
        asks = {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
        answer = await endpoint.ask(None, asks, method="OPTIONS")
        assert answer.headers["access-control-allow-private-network"] == "true"


async def test_cors_exposes_the_headers_that_clients_need() -> None:
    async with serving(allowed_origins=["https://app.example"], allowed_hosts=["127.0.0.1"]) as (endpoint, _):
        answer = await endpoint.ask(initialize(), {"Origin": "https://app.example"})
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"mcp-session-id", "www-authenticate", "mcp-protocol-version", "retry-after"} <= set(exposed)


# 1. The path


@pytest.mark.parametrize("target", ["/", "/other", "/MCP", "/mcp/x", "/mcpx", "//mcp", "/%6dcp", "/.well-known/x"])
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "OPTIONS"])
async def test_unknown_path_gets_status_404_without_a_json_rpc_body(target: str, method: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(None, {"Content-Type": "text/plain"}, method=method, target=target)
        assert answer.status == 404
        assert answer.headers.get("content-type") != "application/json"


@pytest.mark.parametrize("target", ["/mcp", "/mcp/", "/mcp?x=1", "/mcp/?x=1", "http://127.0.0.1/mcp"])
async def test_endpoint_path_is_served_in_every_spelling_without_a_redirect(target: str) -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern("tools/list"), target=target)).status == 200


# 3. The method


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE", "post", "SUBSCRIBE"])
async def test_unsupported_http_method_gets_status_405_with_allow(method: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(None, {"Content-Type": "text/plain", "Accept": "text/html"}, method=method)
        assert answer.status == 405
        assert set(answer.headers["allow"].split(", ")) >= {"POST", "GET", "DELETE"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_get_and_delete_requests_get_status_405_on_a_server_without_sessions(method: str) -> None:
    async with serving(stateless=True) as (endpoint, _):
        answer = await endpoint.ask(None, {"Mcp-Session-Id": "x"}, method=method)
        assert answer.status == 405
        assert not {"GET", "DELETE"} & set(answer.headers["allow"].split(", "))


# 4. The type of the body


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json-rpc",
        "json",
    ],
)
async def test_body_of_another_content_type_gets_status_415(kind: str | None) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list"), {"Content-Type": kind, "Accept": "text/html"})
        assert answer.status == 415


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;a=b"]
)
async def test_server_ignores_case_and_parameters_of_the_content_type(kind: str) -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern("tools/list"), {"Content-Type": kind})).status == 200


# 5. The type of the answer


@pytest.mark.parametrize(
    "accept", ["text/html", "*/*;q=0", "application/xml, text/plain", "*/*, application/json;q=0, text/*;q=0.0"]
)
async def test_post_that_accepts_neither_json_nor_event_streams_gets_status_406(accept: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list"), {"Accept": accept})
        assert answer.status == 406
        assert "application/json or text/event-stream" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "*/*",
        "application/json, text/event-stream",
        "text/event-stream,application/json",
        "APPLICATION/JSON, Text/Event-Stream",
        "application/json;q=0.9, text/event-stream;q=0.1",
        "application/*, text/*",
        "text/html, */*;q=0.1",
        "application/json;charset=utf-8, text/event-stream",
    ],
)
async def test_post_is_served_with_every_notation_of_an_accept_header_for_json_and_event_streams(
    accept: str | None,
) -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern("tools/list"), {"Accept": accept})).status == 200


@pytest.mark.parametrize("accept", [",", ";", "a,", "application/json,;"])
async def test_server_reads_only_the_first_elements_of_a_long_accept_header(accept: str) -> None:
    good = "application/json, text/event-stream"
    async with serving() as (endpoint, _):
        answers = [
            await endpoint.ask(modern("tools/list"), {"Accept": f"{good},{accept * 10_000}"[:15_000]}),
            await endpoint.ask(modern("tools/list"), {"Accept": f"{',' * 15_000}{good}"}),
        ]
    assert [answer.status for answer in answers] == [200, 406]


# 6. The length of the body


async def test_body_with_a_content_length_beyond_the_limit_gets_status_413() -> None:
    async with serving(Limits(max_message_bytes=2000)) as (endpoint, _):
        wire = await endpoint.wire()
        await wire.send(wire.request(b"", {"Content-Length": "2001"}))
        assert (await wire.answer()).status == 413


async def test_request_with_expect_100_continue_and_a_too_long_body_gets_status_413_immediately() -> None:
    async with serving(Limits(max_message_bytes=2000)) as (endpoint, _):
        wire = await endpoint.wire()
        await wire.send(wire.request(b"", {"Content-Length": "2001", "Expect": "100-continue"}))
        assert (await wire.answer()).status == 413


async def test_chunked_body_beyond_the_limit_gets_status_413() -> None:
    async with serving(Limits(max_message_bytes=2000)) as (endpoint, _):
        wire = await endpoint.wire()
        head = wire.request(b"", {"Content-Length": None, "Transfer-Encoding": "chunked"})
        await wire.send(head + b"7d0\r\n" + b" " * 2000 + b"\r\n" + b"7d0\r\nx")
        assert (await wire.answer()).status == 413


async def test_byte_order_mark_before_a_body_is_skipped() -> None:
    async with serving() as (endpoint, _):
        body = modern("tools/list")
        assert (await endpoint.ask(b"\xef\xbb\xbf" + json.dumps(body).encode(), headers_of(body))).status == 200


async def test_body_of_exactly_the_size_limit_is_accepted() -> None:
    async with serving(Limits(max_message_bytes=2000)) as (endpoint, _):
        body = json.dumps(modern("tools/list")).encode()
        answer = await endpoint.ask(body + b" " * (2000 - len(body)), {**headers_of(modern("tools/list"))})
        assert answer.status == 200


def headers_of(body: dict[str, Any]) -> dict[str, str]:
    """The headers that repeat a modern body."""
    meta, params = body["params"]["_meta"], body["params"]
    headers = {"MCP-Protocol-Version": meta[VERSION], "Mcp-Method": body["method"]}
    return headers | ({"Mcp-Name": params["name"]} if "name" in params else {})


# 7. One JSON value


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"{}{}", b"nonsense", b'{"a":1}x', b"\xff\xfe", b'{"a":NaN}', b"[1,]"]
)
@pytest.mark.parametrize("version", [None, LEGACY, MODERN])
async def test_body_that_is_not_json_gets_a_parse_error(body: bytes, version: str | None) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": version})
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32700, None)


# 8. One message


@pytest.mark.parametrize(
    "body", [b"1", b'"x"', b"null", b"true", b"[]", b"{}", b'{"jsonrpc":"2.0"}', b'{"id":1,"method":"ping"}']
)
@pytest.mark.parametrize("version", [None, MODERN])
async def test_json_body_that_is_not_a_json_rpc_message_gets_error_invalid_request(
    body: bytes, version: str | None
) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": version})
        assert (answer.status, answer.code) == (400, -32600)


@pytest.mark.parametrize(
    "body",
    [
        [modern("tools/list")],
        [modern("tools/list", id=1), modern("tools/list", id=2)],
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "x"}},
    ],
)
async def test_modern_body_that_is_a_batch_or_a_response_gets_error_invalid_request(body: Any) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"})
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32600, None)


# 9. The era


async def test_request_with_modern_protocol_meta_is_treated_as_modern_whatever_the_version_header_says() -> None:
    async with serving() as (endpoint, _):
        for version in (None, LEGACY):
            answer = await endpoint.ask(modern("tools/list"), {"MCP-Protocol-Version": version})
            assert (answer.status, answer.code, answer.json["id"]) == (400, -32020, 1)


async def test_request_with_an_unknown_version_in_the_header_only_is_treated_as_modern() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"MCP-Protocol-Version": "v999"}
        )
        assert (answer.status, answer.code) == (400, -32602)


@pytest.mark.parametrize("version", [None, "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_requests_without_a_modern_version_are_treated_as_legacy(version: str | None) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(initialize(), {"MCP-Protocol-Version": version})
        assert answer.json["result"]["protocolVersion"] == LEGACY


async def test_legacy_and_modern_requests_are_served_on_one_connection() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        wire = await endpoint.wire()
        assert text_of((await wire.ask(modern_call("echo", text="a"))).json) == "a"
        assert text_of((await wire.ask(call("echo", text="b"), session)).json) == "b"
        assert text_of((await wire.ask(modern_call("echo", text="c"))).json) == "c"


# 10. What a modern request says of itself


@pytest.mark.parametrize("missing", [VERSION, CAPABILITIES])
@pytest.mark.parametrize("request_id", [7, "seven", 0, ""])
async def test_modern_request_without_a_required_meta_field_gets_error_invalid_params_with_its_id(
    missing: str, request_id: Any
) -> None:
    async with serving() as (endpoint, _):
        body = modern("tools/list", id=request_id)
        del body["params"]["_meta"][missing]
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"})
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32602, request_id)


@pytest.mark.parametrize("params", [None, {}, {"_meta": {}}, {"_meta": 1}, {"_meta": None}])
async def test_modern_request_without_meta_gets_error_invalid_params_with_its_id(params: Any) -> None:
    async with serving() as (endpoint, _):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", **({} if params is None else {"params": params})}
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"})
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32602, 1)


async def test_client_info_in_meta_of_a_modern_request_is_optional() -> None:
    async with serving() as (endpoint, _):
        body = modern("tools/list")
        del body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]
        assert (await endpoint.ask(body)).status == 200


async def test_missing_meta_fields_are_reported_before_missing_headers() -> None:
    async with serving() as (endpoint, _):
        body = modern("tools/list")
        del body["params"]["_meta"][CAPABILITIES]
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": None, "Mcp-Method": None})
        assert answer.code == -32602


# 11. The headers that repeat the body


@pytest.mark.parametrize(
    "headers",
    [
        {"MCP-Protocol-Version": None},
        {"MCP-Protocol-Version": LEGACY},
        {"Mcp-Method": None},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Method": "TOOLS/CALL"},
        {"Mcp-Method": ""},
        {"Mcp-Name": None},
        {"Mcp-Name": "wrong"},
        {"Mcp-Name": "ECHO"},
        {"Mcp-Name": ""},
        {"Mcp-Name": "=?base64?ZWNobw?="},
        {"Mcp-Name": "=?base64?d3Jvbmc=?="},
        {"Mcp-Name": "\xe9cho"},
    ],
)
async def test_mcp_header_that_differs_from_the_body_gets_error_header_mismatch(headers: dict[str, str | None]) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern_call("echo", id="x"), headers)
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32020, "x")


@pytest.mark.parametrize("name", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
async def test_duplicate_mcp_header_gets_error_header_mismatch_even_with_equal_values(name: str) -> None:
    async with serving() as (endpoint, _):
        wire = await endpoint.wire()
        body = modern_call("echo")
        again = f"{name}: {headers_of(body)[name]}\r\n".encode()
        await wire.send(wire.request(body).replace(b"\r\n\r\n", b"\r\n" + again + b"\r\n", 1))
        answer = await wire.answer()
        assert (answer.status, answer.code) == (400, -32020)


@pytest.mark.parametrize("name", ["  echo  ", "\techo", "=?base64?ZWNobw==?="])
async def test_mcp_header_values_with_whitespace_or_base64_are_decoded(name: str) -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern_call("echo"), {"Mcp-Name": name})).status == 200


@pytest.mark.parametrize("spelling", ["mcp-method", "MCP-METHOD", "Mcp-Method"])
async def test_header_names_are_case_insensitive(spelling: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list"), {"Mcp-Method": None, f"{spelling}": "tools/list"})
        assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [("resources/read", {"uri": "watched:thing"}, "watched:thing"), ("prompts/get", {"name": "hello"}, "hello")],
)
async def test_resource_and_prompt_requests_need_the_mcp_name_header(
    method: str, params: dict[str, Any], name: str
) -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern(method, params), {"Mcp-Name": name})).status == 200
        for wrong in (None, "wrong", name.upper()):
            assert (await endpoint.ask(modern(method, params), {"Mcp-Name": wrong})).code == -32020


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_mcp_name_header_of_a_task_request_is_optional_but_must_be_the_task_id(method: str) -> None:
    """Nobody but a gateway needs the name, and not every client says it."""
    async with serving() as (endpoint, _):
        body = modern(method, {"taskId": "t-1", "inputResponses": {}})
        for right in (None, "t-1"):
            assert (await endpoint.ask(body, {"Mcp-Name": right})).code != -32020
        assert (await endpoint.ask(body, {"Mcp-Name": "t-2"})).code == -32020


async def test_mcp_name_header_is_ignored_in_requests_whose_method_takes_no_name() -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern("tools/list"), {"Mcp-Name": "whatever"})).status == 200


# 12. The version


@pytest.mark.parametrize("version", ["v999", "2099-01-01", "2025-11-25", "2024-11-05", ""])
async def test_unsupported_version_error_lists_the_supported_versions(version: str) -> None:
    async with serving() as (endpoint, _):
        body = modern("tools/list", id="x", **{VERSION: version})
        answer = await endpoint.ask(body)
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32022, "x")
        assert answer.json["error"]["data"]["requested"] == version
        assert MODERN in answer.json["error"]["data"]["supported"]


async def test_header_mismatch_is_reported_before_an_unsupported_version_in_meta() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern("tools/list", **{VERSION: "v999"}), {"MCP-Protocol-Version": MODERN})
        assert (answer.status, answer.code) == (400, -32020)


async def test_unsupported_version_is_reported_before_an_unknown_method() -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask(modern("tools/lost", **{VERSION: "v999"}))).code == -32022


# 13. The method of the protocol


@pytest.mark.parametrize(
    "method",
    [
        "tools/lost",
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "sampling/createMessage",
        "elicitation/create",
        "roots/list",
        "",
        "notifications/initialized",
    ],
)
async def test_method_that_the_modern_revision_lacks_gets_status_404(method: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern(method, {"uri": "watched:thing", "level": "info"}, id="x"))
        assert (answer.status, answer.code, answer.json["id"]) == (404, -32601, "x")


# 14. Arguments in headers


@pytest.mark.parametrize(
    "headers", [{}, {"Mcp-Param-Region": "us"}, {"Mcp-Param-Region": "EU"}, {"Mcp-Param-Region": "=?base64?ZXU?="}]
)
async def test_argument_without_its_mcp_param_header_gets_error_header_mismatch(headers: dict[str, str]) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("region", headers, region="eu")
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32020, 1)


@pytest.mark.parametrize("value", ["eu", " eu ", "=?base64?ZXU=?="])
async def test_argument_repeated_in_its_mcp_param_header_reaches_the_tool(value: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("region", {"mcp-param-region": value}, region="eu")
        assert text_of(answer.json) == "eu"


async def test_mcp_param_header_without_its_argument_gets_error_header_mismatch() -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.call("region", {"Mcp-Param-Region": "eu"})).code == -32020
        assert (await endpoint.call("region")).status == 200


async def test_mcp_param_headers_that_no_tool_declares_are_ignored() -> None:
    async with serving() as (endpoint, _):
        assert (
            await endpoint.call("echo", {"Mcp-Param-Region": "eu", "Mcp-Param-Other": "=?base64?x?="})
        ).status == 200


async def test_call_of_an_unknown_tool_gets_status_200_with_an_error() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("lost")
        assert (answer.status, answer.code) == (200, -32602)


# 15. The statuses of errors behind the ladder


async def test_exception_in_a_modern_handler_is_answered_with_an_error_and_status_200() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("fail")
        assert answer.status == 200
        assert answer.json["id"] == 1


async def test_elicitation_without_the_client_capability_gets_status_400_and_names_the_capability() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("ask")
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32021, 1)
        assert answer.json["error"]["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


# Legacy: sending messages


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/unknown", "params": {}},
        {"jsonrpc": "2.0", "id": 99, "result": {}},
        {"jsonrpc": "2.0", "id": 99, "error": {"code": -1, "message": "x"}},
    ],
)
async def test_legacy_notification_or_response_gets_status_202_without_a_body(body: dict[str, Any]) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(body, await endpoint.session())
        assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_legacy_request_without_notifications_is_answered_with_one_json_object(revision: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(call("echo", text="a"), await endpoint.session(revision))
        assert answer.headers["content-type"] == "application/json"
        assert (answer.json["id"], text_of(answer.json)) == (1, "a")


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_legacy_response_with_notifications_is_an_sse_stream_that_ends_with_the_result(revision: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(call("tell", meta={"progressToken": "p"}), await endpoint.session(revision))
        kinds = [message.get("method", "reply") for message in answer.messages]
        assert kinds == ["notifications/progress", "notifications/message", "reply"]


@pytest.mark.parametrize("method", ["tools/lost", "subscriptions/listen", "server/discover", "tasks/lost"])
async def test_unknown_method_in_a_legacy_request_gets_status_200_with_an_error(
    method: str,
) -> None:
    body = {"jsonrpc": "2.0", "id": "x", "method": method}
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(body, await endpoint.session())
        assert (answer.status, answer.code, answer.json["id"]) == (200, -32601, "x")
    async with serving(stateless=True) as (endpoint, _):
        answer = await endpoint.ask(body, {"MCP-Protocol-Version": LEGACY})
        assert (answer.status, answer.code, answer.json["id"]) == (200, -32601, "x")


async def test_error_of_a_legacy_handler_gets_status_200_with_an_error() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        for body, code in ((call("lost"), -32602), (call("ask"), -32600)):
            answer = await endpoint.ask(body, session)
            assert (answer.status, answer.code) == (200, code)


async def test_legacy_elicitation_is_sent_on_the_stream_of_its_call_and_answered_by_post() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session(elicitation={})
        wire = await endpoint.wire()
        await wire.send(wire.request(call("ask"), session))
        await wire.head()
        events = wire.events()
        question = await events.message()
        assert question["method"] == "elicitation/create"
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert (await endpoint.ask(reply, session)).status == 202
        assert (await events.message())["id"] == 1


async def test_batch_in_revision_2025_03_26_is_answered_with_one_response_per_request() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session("2025-03-26")
        told = {"jsonrpc": "2.0", "method": "notifications/unknown"}
        answer = await endpoint.ask([call("echo", id=1, text="a"), told, call("echo", id="b", text="b")], session)
        replies = answer.json if answer.headers["content-type"] == "application/json" else answer.messages[0]
        assert {reply["id"]: text_of(reply) for reply in replies} == {1: "a", "b": "b"}


async def test_notifications_of_a_batch_are_sent_before_its_responses() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session("2025-03-26")
        answer = await endpoint.ask([call("tell", id=1, meta={"progressToken": 1}), call("echo", id=2)], session)
        *told, replies = answer.messages
        assert [each["method"] for each in told] == ["notifications/progress", "notifications/message"]
        assert {reply["id"] for reply in replies} == {1, 2}


async def test_batch_response_omits_a_cancelled_request() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session("2025-03-26")
        wire = await endpoint.wire()
        await wire.send(wire.request([call("hang", id=1), call("echo", id=2)], session))
        await watched.until_started()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await endpoint.ask(cancel, session)
        assert [reply["id"] for reply in (await wire.answer()).json] == [2]


async def test_batch_whose_requests_are_all_cancelled_gets_status_200_and_no_message() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session("2025-03-26")
        wire = await endpoint.wire()
        await wire.send(wire.request([call("hang", id=1)], session))
        await watched.until_started()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await endpoint.ask(cancel, session)
        answer = await wire.answer()
        assert (answer.status, answer.messages) == (200, [])


async def test_batch_of_only_notifications_or_responses_gets_status_202() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session("2025-03-26")
        for member in ({"jsonrpc": "2.0", "method": "notifications/x"}, {"jsonrpc": "2.0", "id": 9, "result": {}}):
            answer = await endpoint.ask([member, member], session)
            assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_batch_in_revisions_after_2025_03_26_gets_status_400(revision: str) -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask([call("echo")], await endpoint.session(revision))
        assert (answer.status, answer.code, answer.json["id"]) == (400, -32600, None)


async def test_legacy_request_is_cancelled_by_a_posted_notification_but_not_by_disconnect() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", id="x"), session))
        await watched.until_started()
        await wire.close()
        assert (await endpoint.ask(call("echo", id=2), session)).status == 200
        assert not watched.ended.is_set()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
        assert (await endpoint.ask(cancel, session)).status == 202
        assert await watched.until_ended() is CancelCause.PEER


@pytest.mark.parametrize("say_something", [False, True])
async def test_response_stream_of_a_cancelled_legacy_request_ends_without_a_result(say_something: bool) -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(
            wire.request(call("hang", id=5, say_something=say_something, meta={"progressToken": 1}), session)
        )
        await watched.until_started()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        await endpoint.ask(cancel, session)
        answer = await wire.answer()
        assert answer.status == 200
        assert [message["method"] for message in answer.messages] == ["notifications/progress"] * say_something


async def test_duplicate_request_id_is_rejected_and_the_first_call_continues() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", id=1), session))
        await watched.until_started()
        answer = await endpoint.ask(call("echo", id=1), session)
        assert (answer.status, answer.code) == (400, -32600)
        assert text_of((await endpoint.ask(call("echo", id="1", text="other"), session)).json) == "other"
        watched.go_on.set()
        answer = await wire.answer()
        reply = answer.json if answer.headers["content-type"] == "application/json" else answer.messages[-1]
        assert (reply["id"], text_of(reply)) == (1, "gone on")


# Legacy: listening


async def listen(endpoint: Endpoint, session: dict[str, str], cursor: str | None = None) -> tuple[Wire, Answer]:
    wire = await endpoint.wire()
    headers = {**session, "Accept": "text/event-stream", "Last-Event-ID": cursor}
    await wire.send(wire.request(None, headers, method="GET"), "GET")
    return wire, await wire.head()


async def test_messages_that_belong_to_no_request_are_sent_on_the_get_stream() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        wire, head = await listen(endpoint, session)
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert (head.headers["cache-control"], head.headers["x-accel-buffering"]) == ("no-cache, no-transform", "no")
        assert "content-length" not in head.headers
        events = wire.events()
        answer = await endpoint.ask(call("change"), session)
        assert answer.headers["content-type"] == "application/json", "the change belongs to no request"
        assert (await events.message())["method"] == "notifications/tools/list_changed"


async def test_get_request_whose_accept_header_lacks_event_streams_gets_status_406() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        assert (await endpoint.ask(None, {**session, "Accept": "application/json"}, method="GET")).status == 406


async def test_second_get_stream_replaces_the_first_without_duplicate_messages() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        first, _ = await listen(endpoint, session)
        second, head = await listen(endpoint, session)
        assert head.status == 200
        await endpoint.ask(call("change"), session)
        assert (await second.events().message())["method"] == "notifications/tools/list_changed"
        assert await first.events().rest() == [], "the first one has ended without it"


async def test_messages_sent_while_no_get_stream_is_open_are_delivered_on_the_next_get_stream() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        await endpoint.ask(call("change"), session)
        wire, _ = await listen(endpoint, session)
        assert (await wire.events().message())["method"] == "notifications/tools/list_changed"


async def test_messages_are_neither_lost_nor_duplicated_over_successive_get_streams() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wires = list[Wire]()
        for _ in range(30):
            wires.append((await listen(endpoint, session))[0])
            watched.server._observers.list_changed("notifications/tools/list_changed")
        await endpoint.ask(None, session, method="DELETE")
        assert sum([len(await wire.events().rest()) for wire in wires]) == 30


async def test_session_without_a_get_stream_does_not_block_requests_or_shutdown() -> None:
    async with serving(Limits(high_water=1000), handle_signals=True) as (endpoint, watched):
        session = await endpoint.session()
        for _ in range(1000):
            watched.server._observers.list_changed("notifications/tools/list_changed")
        assert (await endpoint.ask(call("echo"), session)).status == 200
        signal.raise_signal(signal.SIGTERM)  # and the block ends


# Legacy: resuming


async def test_first_sse_event_of_a_stream_in_revision_2025_11_25_has_an_id_and_no_data() -> None:
    async with serving() as (endpoint, _):
        wire, _ = await listen(endpoint, await endpoint.session())
        first = await wire.events().next()
        assert first is not None
        assert (first.data, bool(first.id)) == (b"", True)
        assert re.fullmatch(r"[!-~]+", first.id)


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18"])
async def test_sse_streams_of_older_revisions_contain_no_events_without_data(revision: str) -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session(revision)
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", say_something=True, meta={"progressToken": 1}), session))
        await watched.until_started()
        watched.go_on.set()
        answer = await wire.answer()
        assert b"data: \n" not in answer.body
        assert len(answer.messages) == 2


async def test_interrupted_sse_stream_resumes_after_last_event_id() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", id="x", say_something=True, meta={"progressToken": 1}), session))
        await wire.head()
        events = wire.events()
        await events.message()
        cursor = events.cursor
        await wire.close()
        watched.go_on.set()
        await watched.until_ended()
        again, head = await listen(endpoint, session, cursor)
        assert head.status == 200
        messages = await again.events().rest()
        assert [message["id"] for message in messages] == ["x"], "what was missed, and then the end"
        once_more, _ = await listen(endpoint, session, cursor)
        messages = await once_more.events().rest()
        assert [message["id"] for message in messages] == ["x"], "kept for a while, since nobody knows what arrived"


async def test_client_that_reconnects_during_a_call_receives_every_event_of_its_sse_stream() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", id="x", say_something=True, meta={"progressToken": 1}), session))
        await wire.head()
        events = wire.events()
        await events.next()
        await wire.close()
        again, _ = await listen(endpoint, session, events.cursor)
        events = again.events()
        assert (await events.message())["method"] == "notifications/progress"
        watched.go_on.set()
        assert (await events.message())["id"] == "x"
        assert await events.rest() == []


async def test_get_request_with_last_event_id_replays_only_the_sse_stream_of_that_event() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("hang", id="x", say_something=True, meta={"progressToken": 1}), session))
        await wire.head()
        events = wire.events()
        await events.next()
        other = await endpoint.ask(call("tell", id="y", meta={"progressToken": 2}), session)
        assert len(other.messages) >= 2
        await endpoint.ask(call("change", id="z"), session)
        watched.go_on.set()
        await watched.until_ended()
        again, _ = await listen(endpoint, session, events.cursor)
        messages = await again.events().rest()
        assert [message.get("id", message.get("method")) for message in messages] == ["notifications/progress", "x"]


async def test_sse_event_ids_are_unique_within_a_session() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        found = list[str]()
        for number in range(5):
            answer = await endpoint.ask(call("tell", id=number, meta={"progressToken": number}), session)
            found += re.findall(rb"^id: (.+)$", answer.body, re.MULTILINE)
        assert len(found) == len(set(found)) >= 15


async def test_sse_stream_that_the_handler_closes_for_polling_sends_a_retry_field_and_an_event_id() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("poll", id="x"), session))
        await wire.head()
        events = wire.events()
        assert await events.rest() == [], "the response has ended, and the request has not"
        assert (events.retry, bool(events.cursor)) == (250, True)
        assert watched.seen == [True]
        again, _ = await listen(endpoint, session, events.cursor)
        watched.go_on.set()
        assert [message["id"] for message in await again.events().rest()] == ["x"]


async def test_last_event_id_stays_valid_after_two_breaks_without_an_event() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire = await endpoint.wire()
        await wire.send(wire.request(call("poll", id="x"), session))
        await wire.head()
        events = wire.events()
        await events.rest()
        for _ in range(2):
            again, head = await listen(endpoint, session, events.cursor)
            assert head.status == 200
            await again.close()
        watched.go_on.set()
        again, _ = await listen(endpoint, session, events.cursor)
        assert [message["id"] for message in await again.events().rest()] == ["x"]


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", MODERN])
async def test_handler_cannot_close_its_stream_for_polling_in_revisions_without_polling(revision: str) -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        if revision == MODERN:
            await wire.send(wire.request(modern_call("poll")))
        else:
            await wire.send(wire.request(call("poll"), await endpoint.session(revision)))
        await watched.until_started()
        assert watched.seen == [False]
        watched.go_on.set()
        assert text_of((await wire.answer()).json) == "worth it"


async def test_idle_legacy_streams_receive_comments_without_event_ids() -> None:
    async with serving(Limits(stream_interval=0.05)) as (endpoint, watched):
        session = await endpoint.session()
        listening, _ = await listen(endpoint, session)
        calling = await endpoint.wire()
        await calling.send(calling.request(call("hang", id="x"), session))
        await calling.head()
        for wire in (listening, calling):
            events = wire.events()
            await events.next()
            cursor = events.cursor
            while not (await wire.part()).startswith(b":"):
                pass
            assert events.cursor == cursor
        watched.go_on.set()


@pytest.mark.parametrize("cursor", ["nonsense", "1-1", "", "-", "0", "x" * 5000])
async def test_get_request_with_an_unknown_last_event_id_gets_status_400(cursor: str) -> None:
    async with serving() as (endpoint, _):
        _, head = await listen(endpoint, await endpoint.session(), cursor)
        assert head.status == 400


async def test_get_request_with_a_last_event_id_of_another_session_gets_status_400() -> None:
    async with serving() as (endpoint, _):
        mine, other = await endpoint.session(), await endpoint.session()
        wire, _ = await listen(endpoint, other)
        events = wire.events()
        await events.next()
        cursor = events.cursor
        assert (await listen(endpoint, mine, cursor))[1].status == 400
        assert (await listen(endpoint, other, cursor))[1].status == 200


async def test_get_request_with_a_last_event_id_gets_status_400_if_later_events_were_dropped() -> None:
    async with serving(Limits(max_replay_bytes=1000)) as (endpoint, _):
        session = await endpoint.session()
        wire, _ = await listen(endpoint, session)
        events = wire.events()
        await events.next()
        cursor = events.cursor
        await wire.close()
        for number in range(10):
            await endpoint.ask(call("change", id=number), session)
        assert (await listen(endpoint, session, cursor))[1].status == 400


# Legacy: sessions


async def test_session_id_is_visible_ascii_and_unguessable() -> None:
    async with serving() as (endpoint, _):
        ids = [(await endpoint.session())["Mcp-Session-Id"] for _ in range(5)]
        assert len(set(ids)) == 5
        assert all(re.fullmatch(r"[!-~]{22,}", each) for each in ids), "128 bits take 22 characters at least"


async def test_response_contains_a_session_id_only_if_it_answers_initialize() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        for answer in (
            await endpoint.ask(call("echo"), session),
            await endpoint.ask(call("echo")),
            await endpoint.ask(modern("tools/list")),
            await endpoint.ask(None, method="GET"),
            await endpoint.ask(None, method="DELETE"),
        ):
            assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_legacy_request_without_a_session_gets_status_400(method: str) -> None:
    async with serving() as (endpoint, _):
        body = call("echo") if method == "POST" else None
        assert (await endpoint.ask(body, {"MCP-Protocol-Version": LEGACY}, method=method)).status == 400


async def test_legacy_notification_without_a_session_gets_status_400() -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 400


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("session_id", ["unknown", "", "x" * 4000])
async def test_unknown_session_gets_status_404(method: str, session_id: str) -> None:
    async with serving() as (endpoint, _):
        body = call("echo") if method == "POST" else None
        assert (await endpoint.ask(body, {"Mcp-Session-Id": session_id}, method=method)).status == 404


async def test_duplicate_session_header_gets_status_400_or_404() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        wire = await endpoint.wire()
        again = f"Mcp-Session-Id: {session['Mcp-Session-Id']}\r\n".encode()
        await wire.send(wire.request(call("echo"), session).replace(b"\r\n\r\n", b"\r\n" + again + b"\r\n", 1))
        assert (await wire.answer()).status in (400, 404)


async def test_delete_request_ends_its_session_and_all_requests_and_streams_of_the_session() -> None:
    async with serving() as (endpoint, watched):
        session = await endpoint.session()
        wire, _ = await listen(endpoint, session)
        calling = await endpoint.wire()
        await calling.send(calling.request(call("hang"), session))
        await watched.until_started()
        assert (await endpoint.ask(None, session, method="DELETE")).status in (200, 202, 204)
        assert await watched.until_ended() is not None
        assert await wire.events().rest() == []
        await calling.answer()
        for method in ("POST", "GET", "DELETE"):
            body = call("echo") if method == "POST" else None
            assert (await endpoint.ask(body, session, method=method)).status == 404


async def test_delete_request_for_one_session_does_not_affect_other_sessions() -> None:
    async with serving() as (endpoint, _):
        one, two = await endpoint.session(), await endpoint.session()
        await endpoint.ask(None, one, method="DELETE")
        assert (await endpoint.ask(call("echo"), two)).status == 200


@pytest.mark.parametrize(
    "params", [{}, {"protocolVersion": 1, "capabilities": {}}, {"protocolVersion": None, "clientInfo": {"name": "c"}}]
)
async def test_rejected_initialize_creates_no_session(params: Any) -> None:
    async with serving(Limits(max_sessions=1)) as (endpoint, _):
        answer = await endpoint.ask({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        assert "error" in answer.json
        assert "mcp-session-id" not in answer.headers
        await endpoint.session()


async def test_initialize_beyond_the_session_limit_gets_status_503_until_a_session_is_deleted() -> None:
    async with serving(Limits(max_sessions=1)) as (endpoint, _):
        session = await endpoint.session()
        answer = await endpoint.ask(initialize())
        assert (answer.status, answer.headers["retry-after"].isdigit()) == (503, True)
        await endpoint.ask(None, session, method="DELETE")
        assert (await endpoint.ask(initialize())).status == 200


async def test_handler_can_read_the_session_id_and_http_headers_of_its_request() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        reply = (await endpoint.ask(call("who"), {**session, "X-Mine": "yes"})).json
        assert reply["result"]["structuredContent"] == {"session": session["Mcp-Session-Id"], "header": "yes"}


async def test_legacy_client_is_served_by_a_server_without_sessions() -> None:
    async with serving(stateless=True) as (endpoint, _):
        answer = await endpoint.ask(initialize())
        assert answer.status == 200
        assert "mcp-session-id" not in answer.headers
        assert (await endpoint.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
        assert text_of((await endpoint.ask(call("echo", text="a"))).json) == "a"


# Legacy: the version header


@pytest.mark.parametrize("version", ["1999-01-01", "nonsense", ""])
async def test_htt_09_unsupported_version_header_in_a_session_gets_status_400(version: str) -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        answer = await endpoint.ask(call("echo"), {**session, "MCP-Protocol-Version": version})
        assert answer.status == 400


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2026-07-28"])
async def test_htt_09_session_request_with_a_different_supported_version_header_is_served(version: str) -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        answer = await endpoint.ask(call("echo"), {**session, "MCP-Protocol-Version": version})
        assert answer.status == 200


@pytest.mark.parametrize("version", ["1999-01-01", "nonsense"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_unsupported_version_header_gets_status_400_for_every_http_method(version: str, method: str) -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        answer = await endpoint.ask(None, {**session, "MCP-Protocol-Version": version}, method=method)
        assert answer.status == 400


async def test_notification_with_an_unsupported_version_header_gets_status_400() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        body = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        answer = await endpoint.ask(body, {**session, "MCP-Protocol-Version": "1999-01-01"})
        assert answer.status == 400


async def test_version_header_is_optional_within_a_session() -> None:
    async with serving() as (endpoint, _):
        session = await endpoint.session()
        assert (await endpoint.ask(call("echo"), {**session, "MCP-Protocol-Version": None})).status == 200


# Modern


async def test_modern_request_ignores_session_id_and_last_event_id_headers() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern_call("who"), {"Mcp-Session-Id": "unknown", "Last-Event-ID": "1-1"})
        assert answer.status == 200
        assert "mcp-session-id" not in answer.headers
        assert answer.json["result"]["structuredContent"]["session"] is None


async def test_modern_response_without_notifications_is_json() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.call("echo", text="a")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["result"]["resultType"] == "complete"


async def test_modern_response_with_notifications_is_an_sse_stream_without_event_ids() -> None:
    async with serving() as (endpoint, _):
        answer = await endpoint.ask(modern_call("tell", meta={"progressToken": 0, LOG_LEVEL: "debug"}))
        assert answer.status == 200
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-length" not in answer.headers
        kinds = [message.get("method", "reply") for message in answer.messages]
        assert kinds == ["notifications/progress", "notifications/message", "reply"]
        assert not re.search(rb"^(id|retry)", answer.body, re.MULTILINE), "streams are not resumable"


async def test_modern_request_gets_progress_only_with_a_token_and_logs_only_with_a_level_in_meta() -> None:
    async with serving() as (endpoint, _):
        assert (await endpoint.call("tell")).headers["content-type"] == "application/json"
        told = await endpoint.ask(modern_call("tell", meta={"progressToken": 1}))
        assert [message.get("method") for message in told.messages] == ["notifications/progress", None]
        told = await endpoint.ask(modern_call("tell", meta={LOG_LEVEL: "info"}))
        assert [message.get("method") for message in told.messages] == ["notifications/message", None]


async def test_modern_elicitation_returns_input_required_and_can_be_retried_on_any_connection() -> None:
    async with serving() as (endpoint, _):
        body = modern_call("ask", meta={CAPABILITIES: {"elicitation": {"form": {}}}, "progressToken": 1})
        answer = await endpoint.ask(body)
        reply = answer.json if answer.headers["content-type"] == "application/json" else answer.messages[-1]
        assert reply["result"]["resultType"] == "input_required"
        ((key, question),) = reply["result"]["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        params = {
            "name": "ask",
            "arguments": {},
            "inputResponses": {key: {"action": "decline"}},
            "requestState": reply["result"]["requestState"],
        }
        again = await endpoint.ask(modern("tools/call", params, id=2, **{CAPABILITIES: {"elicitation": {"form": {}}}}))
        assert again.json["result"]["resultType"] == "complete", "by another connection than the first one"


async def test_response_stream_of_an_idle_modern_handler_contains_comments() -> None:
    async with serving(Limits(stream_interval=0.05)) as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang")))
        head = await wire.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        parts = [await wire.part() for _ in range(3)]
        assert all(part.startswith(b":") for part in parts)
        watched.go_on.set()
        assert text_of(await wire.events().message()) == "gone on"


@pytest.mark.parametrize("say_something", [False, True])
async def test_client_that_disconnects_before_or_during_the_response_cancels_its_modern_request(
    say_something: bool,
) -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang", say_something=say_something, meta={"progressToken": 1})))
        if say_something:
            await wire.head()
        await watched.until_started()
        await wire.close()
        assert await watched.until_ended() is CancelCause.DISCONNECT


async def test_half_closed_connection_is_treated_as_a_disconnect() -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang")))
        await watched.until_started()
        await wire.stream.send_eof()
        assert await watched.until_ended() is CancelCause.DISCONNECT


async def test_client_that_disconnects_does_not_cancel_another_request_with_the_same_id() -> None:
    async with serving() as (endpoint, watched):
        leaving, staying = await endpoint.wire(), await endpoint.wire()
        await staying.send(staying.request(modern_call("hang", id=1)))
        await watched.until_started()
        watched.started = trio.Event()
        await leaving.send(leaving.request(modern_call("hang", id=1)))
        await watched.until_started()
        await leaving.close()
        assert await watched.until_ended() is CancelCause.DISCONNECT
        watched.go_on.set()
        assert text_of((await staying.answer()).json) == "gone on"


async def test_pipelined_requests_are_answered_in_order_and_do_not_count_as_a_disconnect() -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        first, second = wire.request(modern_call("hang", id=1)), wire.request(modern_call("echo", id=2))
        await wire.send(first + second)
        await watched.until_started()
        assert (await endpoint.call("echo")).status == 200
        assert not watched.ended.is_set()
        watched.go_on.set()
        assert (await wire.answer()).json["id"] == 1
        await wire.send(b"")
        assert (await wire.answer()).json["id"] == 2


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "notifications/unknown"])
async def test_modern_notification_gets_status_202_without_a_body(method: str) -> None:
    async with serving() as (endpoint, _):
        body = modern(method, {"requestId": 1})
        del body["id"]
        answer = await endpoint.ask(body)
        assert (answer.status, answer.body) == (202, b"")


async def test_posted_cancelled_notification_does_not_cancel_a_modern_request() -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang", id=1)))
        await watched.until_started()
        body = modern("notifications/cancelled", {"requestId": 1})
        del body["id"]
        assert (await endpoint.ask(body)).status == 202
        watched.go_on.set()
        assert text_of((await wire.answer()).json) == "gone on"


async def subscribed(endpoint: Endpoint, notifications: dict[str, Any], request_id: Any) -> tuple[Wire, Events]:
    wire = await endpoint.wire()
    await wire.send(wire.request(modern("subscriptions/listen", {"notifications": notifications}, id=request_id)))
    head = await wire.head()
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    return wire, wire.events()


@pytest.mark.parametrize("request_id", ["listen", "1", 1, 0, ""])
async def test_listen_stream_begins_with_its_acknowledgement(request_id: Any) -> None:
    async with serving() as (endpoint, _):
        _, events = await subscribed(endpoint, {"toolsListChanged": True}, request_id)
        first = await events.message()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"] == {"toolsListChanged": True}
        assert first["params"]["_meta"][SUBSCRIPTION] == request_id
        assert type(first["params"]["_meta"][SUBSCRIPTION]) is type(request_id)
        await endpoint.call("change")
        change = await events.message()
        assert change["method"] == "notifications/tools/list_changed"
        assert change["params"]["_meta"][SUBSCRIPTION] == request_id


async def test_listen_stream_contains_only_subscribed_changes() -> None:
    async with serving(handle_signals=True) as (endpoint, _):
        _, prompt_events = await subscribed(endpoint, {"promptsListChanged": True}, 1)
        _, tool_events = await subscribed(endpoint, {"toolsListChanged": True}, 2)
        await prompt_events.message()
        await tool_events.message()
        await endpoint.call("change")
        await tool_events.message()
        signal.raise_signal(signal.SIGTERM)
        rest = await prompt_events.rest()
        assert [message["method"] for message in rest[:-1]] == ["notifications/cancelled"]
        assert rest[-1]["id"] == 1


async def test_server_that_ends_a_listen_stream_sends_a_result() -> None:
    async with serving(Limits(drain_timeout=LONG), handle_signals=True) as (endpoint, _):
        _, events = await subscribed(endpoint, {"toolsListChanged": True}, "listen")
        await events.message()
        signal.raise_signal(signal.SIGTERM)
        cancel, reply = await events.rest()
        # Cancellation: MUST be sent; subscriptions, Graceful Closure: the response comes last.
        assert (cancel["method"], cancel["params"]["requestId"]) == ("notifications/cancelled", "listen")
        assert (reply["id"], reply["result"]["resultType"]) == ("listen", "complete")
        assert cancel["params"]["_meta"][SUBSCRIPTION] == reply["result"]["_meta"][SUBSCRIPTION] == "listen"


async def test_disconnected_listen_stream_does_not_affect_other_listen_streams() -> None:
    async with serving() as (endpoint, _):
        one, one_events = await subscribed(endpoint, {"toolsListChanged": True}, 1)
        _, two_events = await subscribed(endpoint, {"toolsListChanged": True}, 1)
        await one_events.message()
        await two_events.message()
        await one.close()
        await endpoint.call("change")
        assert (await two_events.message())["method"] == "notifications/tools/list_changed"


async def test_modern_response_stream_contains_only_messages_of_its_request() -> None:
    async with serving() as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang", id=1, say_something=True, meta={"progressToken": "same"})))
        await watched.until_started()
        told = await endpoint.ask(modern_call("tell", id=1, meta={"progressToken": "same", LOG_LEVEL: "debug"}))
        assert len(told.messages) == 3
        watched.go_on.set()
        answer = await wire.answer()
        assert [message.get("method") for message in answer.messages] == ["notifications/progress", None]


async def test_every_json_response_has_date_and_content_length() -> None:
    async with serving() as (endpoint, _):
        for answer in (await endpoint.call("echo"), await endpoint.ask(b"{"), await endpoint.ask(None, method="PUT")):
            assert "date" in answer.headers
            assert int(answer.headers["content-length"]) == len(answer.body)


# The end of the server


async def test_sigterm_ends_listen_and_get_streams_and_lets_requests_finish() -> None:
    async with serving(Limits(drain_timeout=LONG), handle_signals=True) as (endpoint, watched):
        session = await endpoint.session()
        listening, _ = await listen(endpoint, session)
        calling = await endpoint.wire()
        await calling.send(calling.request(modern_call("hang")))
        await watched.until_started()
        signal.raise_signal(signal.SIGTERM)
        assert await listening.events().rest() == []
        watched.go_on.set()
        answer = await calling.answer()
        assert text_of(answer.json) == "gone on"
        assert answer.headers["connection"] == "close"


async def test_cancelled_http_server_cancels_requests_and_ends_streams_completely() -> None:
    async with serving() as (endpoint, watched):
        listening, _ = await listen(endpoint, await endpoint.session())
        _, changes = await subscribed(endpoint, {"toolsListChanged": True}, "listen")
        await changes.message()
        calling, idle = await endpoint.wire(), await endpoint.wire()
        await calling.send(calling.request(modern_call("hang")))
        await watched.until_started()
        await idle.ask(modern_call("echo"))
        endpoint.end()
        assert await watched.until_ended() is CancelCause.PARENT
        assert (await calling.answer()).messages == []
        assert await listening.events().rest() == []
        assert [message for message in await changes.rest() if "result" in message] == []
        assert await idle.stream.receive_some() == b""


async def test_cancelled_http_server_does_not_wait_for_a_client_that_does_not_read() -> None:
    async with serving() as (endpoint, _):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("echo", text="x" * 3_500_000)))
        await endpoint.call("echo")
        endpoint.end()
        await endpoint.ended()


async def test_request_cancelled_by_shutdown_is_answered_with_a_shutdown_error() -> None:
    async with serving(Limits(drain_timeout=0.05), handle_signals=True) as (endpoint, watched):
        wire = await endpoint.wire()
        await wire.send(wire.request(modern_call("hang")))
        await watched.until_started()
        signal.raise_signal(signal.SIGTERM)
        assert (await wire.answer()).status == 503
        assert await watched.until_ended() is CancelCause.SHUTDOWN
