"""Access to the web inspector: only with its token, on localhost, and from its own origin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
import trio.testing
from tests.inspecting.opened import inspected
from tests.patience import PATIENCE

from trio_mcp import Server
from trio_mcp.inspecting.application import serve_page
from trio_mcp.inspecting.runs import MOST_PAGES

MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"]
FILES = ["", "page.html", "page.css", "page.js", "elements.js", "forms.js", "questions.js", "results.js", "runs.js"]


@attrs.frozen
class Answer:
    status: int
    headers: HTTPMessage
    body: bytes


@attrs.frozen
class Served:
    """A page that is served at ``address``."""

    address: str

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str = "", /, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
        """The answer to a request for ``path``, which begins with a slash or belongs to the page."""
        target = path if path.startswith("/") else self.path + path
        given = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", "Content-Length": str(len(body))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value), "", ""]
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all("\r\n".join(lines).encode() + body)
            received = b"".join([part async for part in stream])
        head, _, rest = received.partition(b"\r\n\r\n")
        first, _, fields = head.partition(b"\r\n")
        return Answer(int(first.split()[1]), parse_headers(BytesIO(fields + b"\r\n\r\n")), rest)

    async def do(self, asked: Any, **headers: str) -> Answer:
        given = {"Origin": self.origin, "Content_Type": "application/json", **headers}
        return await self.get("do", "POST", json.dumps(asked).encode(), **given)


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Served]:
    async with inspected(server) as opened, trio.open_nursery() as nursery:
        yield Served(await nursery.start(serve_page, opened.inspection))
        nursery.cancel_scope.cancel(reason="the test is over")


@pytest.fixture
async def page() -> AsyncIterator[Served]:
    async with served(Server("shop")) as found:
        yield found


async def test_web_inspector_serves_only_the_files_of_the_inspector_page(page: Served) -> None:
    for name in FILES:
        answer = await page.get(name)
        assert (answer.status, len(answer.body) > 100) == (200, True), name
    assert (await page.get("../page.js")).status == 404
    assert (await page.get("inspection.py")).status == 404


async def test_each_web_inspector_has_a_different_token(page: Served) -> None:
    async with served(Server("other")) as other:
        assert other.path != page.path
        assert len(page.path) > 30
        assert (await page.get(other.path)).status == 403


@pytest.mark.parametrize("path", ["/", "/page.js", "/events", "/do", "//page.html", "/%2e/", "/timeline.svg?run=1"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
async def test_inspector_request_without_the_token_gets_403_without_content(
    page: Served, path: str, method: str
) -> None:
    answer = await page.get(path, method, Origin=page.origin)
    assert answer.status == 403
    assert page.path.strip("/").encode() not in answer.body


async def test_inspector_request_with_a_similar_token_gets_403(page: Served) -> None:
    token = page.path.strip("/")
    for wrong in (token[:-1], token + "x", token.swapcase(), f"x{token}", token[::-1]):
        assert (await page.get(f"/{wrong}/")).status == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "192.168.1.1", "[::1]"])
async def test_inspector_request_with_another_host_header_gets_403(page: Served, host: str) -> None:
    assert (await page.get(Host=f"{host}:{page.port}")).status == 403
    assert (
        await page.do({"do": "ping"}, Host=f"{host}:{page.port}", Origin=f"http://{host}:{page.port}")
    ).status == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
async def test_inspector_request_from_another_origin_gets_403_even_with_the_token(page: Served, origin: str) -> None:
    assert (await page.get(Origin=origin)).status == 403
    assert (await page.get("events", Origin=origin)).status == 403
    assert (await page.do({"do": "ping"}, Origin=origin)).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_inspector_answers_403_to_a_cross_site_request_for_its_files(page: Served, site: str) -> None:
    assert (await page.get("page.js", Sec_Fetch_Site=site)).status == 403
    assert (await page.get("page.js", Sec_Fetch_Site="same-origin")).status == 200


async def test_inspector_refuses_a_post_without_an_origin_or_json_body(page: Served) -> None:
    assert (await page.do({"do": "ping"})).status == 200
    assert (await page.do({"do": "ping"}, Origin="")).status == 403
    assert (await page.do({"do": "ping"}, Content_Type="text/plain")).status == 403
    assert (await page.get("do")).status == 405
    assert (await page.get("page.js", "POST", Origin=page.origin, Content_Type="application/json")).status == 405


async def test_every_inspector_response_has_a_strict_content_security_policy(page: Served) -> None:
    for answer in (await page.get(), await page.get("/"), await page.get("none"), await page.do({"do": "ping"})):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Access-Control-Allow-Origin"] is None
    drawn = await page.get("timeline.svg")
    assert drawn.headers["Content-Type"] == "image/svg+xml"
    assert drawn.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert "script" not in drawn.headers["Content-Security-Policy"]


async def test_inspector_page_scripts_load_nothing_from_other_hosts_and_never_insert_html(page: Served) -> None:
    for name in FILES:
        text = (await page.get(name)).body.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert word not in text, f"{name}: {word}"
        assert "://" not in text.replace("file:///home/me/project My project", "").replace("file://", ""), name


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "must be JSON"),
        (b"[]", "must be a JSON object"),
        (b"[" * 100_000, "must be JSON"),
        (b'"\xff"', "must be JSON"),
        (b"{}", "unknown request"),
    ],
)
async def test_malformed_inspector_request_gets_400_with_a_reason(page: Served, body: bytes, words: str) -> None:
    answer = await page.get("do", "POST", body, Origin=page.origin, Content_Type="application/json")
    assert answer.status == 400
    assert words in json.loads(answer.body)["error"]


async def test_too_large_inspector_request_gets_413(page: Served) -> None:
    headers = {"Origin": page.origin, "Content_Type": "application/json", "Content_Length": "10000000"}
    assert (await page.get("do", "POST", **headers)).status == 413


async def test_inspector_answers_502_with_the_message_of_a_server_error(page: Served) -> None:
    answer = await page.do({"do": "cancelTask", "task": "none"})
    assert (answer.status, bool(json.loads(answer.body)["error"])) == (502, True)
    assert (await page.do({"do": "result", "run": 7})).status == 400
    assert (await page.get("timeline.svg?run=7")).status == 404


async def test_inspector_limits_event_streams_and_frees_a_closed_stream(page: Served) -> None:
    async def opened() -> tuple[trio.SocketStream, bytes]:
        stream = await trio.open_tcp_stream("127.0.0.1", page.port)
        request = f"GET {page.path}events HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
        await stream.send_all(request.encode())
        return stream, await stream.receive_some()

    with trio.fail_after(PATIENCE):
        streams = [await opened() for _ in range(MOST_PAGES - 1)]  # one is open already
        assert all(b"200 OK" in first and b"text/event-stream" in first for _, first in streams)
        last, refused = await opened()
        assert b" 503 " in refused
        for stream, _ in [*streams, (last, b"")]:
            await stream.aclose()
        while True:
            stream, first = await opened()
            await stream.aclose()
            if b"200 OK" in first:
                break


async def test_inspector_event_stream_continues_to_send_events_after_the_first_ones(page: Served) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", page.port) as stream:
        request = f"GET {page.path}events HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nConnection: close\r\n\r\n"
        await stream.send_all(request.encode())
        events = b""
        while b'"what":"everything"' not in events:
            events += await stream.receive_some()
        for number in (1, 2):
            await page.do({"do": "start", "kind": "call", "name": f"call {number}", "arguments": {}})
            while f"call {number}".encode() not in events:
                some = await stream.receive_some()
                assert some, "the stream has ended"
                events += some


async def test_silent_inspector_connection_is_closed_after_its_timeout(autojump_clock: trio.testing.MockClock) -> None:
    async with served(Server("shop")) as page, await trio.open_tcp_stream("127.0.0.1", page.port) as stream:
        assert await stream.receive_some() == b""
        assert trio.current_time() > 1


async def test_web_inspector_listens_only_on_localhost(page: Served) -> None:
    assert urlsplit(page.address).hostname == "127.0.0.1"
    with pytest.raises(OSError, match=r".+"):
        await trio.open_tcp_stream("127.0.0.2", page.port)


ODD = ([1], {"a": 1}, [], {}, None, True, -1, 1.5, 10**300, "", "\ud800", "x" * 10_000, [[[]]], float("1e308"))
DO = {
    "complete": {"kind": "prompt", "name": "a", "argument": "b", "value": ""},
    "list": {"kind": "tools"},
    "logLevel": {"level": "info"},
    "ping": {},
    "tasks": {},
    "task": {"task": "none"},
    "cancelTask": {"task": "none"},
    "start": {"kind": "call", "name": "a", "arguments": {}},
    "cancel": {"run": 1},
    "answer": {"question": 1, "answer": {"action": "accept", "content": {}}},
    "frame": {"frame": 1},
    "result": {"run": 1},
}


@pytest.mark.parametrize("do", DO)
async def test_inspector_request_with_any_json_values_never_gets_500(page: Served, do: str) -> None:
    for key in ("do", *DO[do]):
        for odd in ODD:
            answer = await page.do({"do": do, **DO[do], key: odd})
            assert answer.status in (200, 400, 502), (key, odd, answer.body)
            assert "answer" in json.loads(answer.body) or json.loads(answer.body)["error"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET",
        b"POST /wrong/do HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_connections_without_the_token_do_not_block_the_inspector(page: Served, sent: bytes) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            for _ in range(64):
                stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", page.port))
                await stream.send_all(sent)
            assert (await page.get()).status == 200
            assert (await page.do({"do": "ping"})).status == 200


async def test_inspector_at_the_connection_limit_does_not_close_connections_with_unfinished_requests(
    page: Served,
) -> None:
    request = f"POST {page.path}do HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nOrigin: {page.origin}\r\n"
    request += 'Content-Type: application/json\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"do":"ping"'
    async with AsyncExitStack() as stack:
        streams = list[trio.SocketStream]()
        for _ in range(64):
            streams.append(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", page.port)))
            await streams[-1].send_all(request.encode())
        await trio.testing.wait_all_tasks_blocked()
        refused = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", page.port))
        assert await refused.receive_some() == b""
        for stream in streams:
            await stream.send_all(b"}")
            assert b" 200 OK" in await stream.receive_some()
