"""The access log, where it is asked for: a line for each response, however it ends."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.serving.http.memory_listener import ListenedEndpoint, listening
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import BASE, modern
from tests.serving.http.scenes import Scene, next_message, over_sockets
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import TrustedProxies


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trio_mcp.access")
    return caplog


def said_by(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records if record.name == "trio_mcp.access"]


async def asked(endpoint: ListenedEndpoint, tool: str, **arguments: Any) -> Any:
    headers, body = modern("tools/call", {"name": tool, "arguments": arguments})
    connection = await endpoint.connect()
    await connection.send("POST", {**headers, **bearer("alice-1")}, body)
    return connection


async def test_access_log_line_of_each_response_names_client_request_and_duration(
    autojump_clock: MockClock, lines: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    async with listening(scene.server, auth=protected(issued()), access_log=True) as endpoint:
        quick = await (await asked(endpoint, "echo", text="a")).answer()
        post = await asked(endpoint, "steps", name="mine")
        await scene["mine"].started.wait()
        await trio.sleep(2)
        scene["mine"].may_go_on.set()
        slow = await post.answer()
    assert said_by(lines) == [
        f'- alice "POST /mcp" 200 {len(quick.body)} 0.000 s',
        f'- alice "POST /mcp" 200 {len(slow.body)} 2.000 s',
    ]
    said = vars(lines.records[-1])
    assert (said["client"], said["caller"], said["method"], said["path"]) == (None, "alice", "POST", "/mcp")
    assert (said["status"], said["size"], said["duration"], said["left"]) == (200, len(slow.body), 2, False)


@pytest.mark.parametrize("speaks", [False, True])
async def test_access_log_contains_requests_whose_client_disconnected_before_the_response_ended(
    autojump_clock: MockClock, lines: pytest.LogCaptureFixture, speaks: bool
) -> None:
    scene = Scene()
    async with listening(scene.server, auth=protected(issued()), access_log=True) as endpoint:
        post = await asked(endpoint, "wait", name="mine", speaks=speaks)
        await scene["mine"].started.wait()
        if speaks:
            await post.head()
            await next_message(post)
        await trio.sleep(3)
        await post.aclose()
        await wait_all_tasks_blocked()
    [line] = said_by(lines)
    assert line.startswith('- alice "POST /mcp" 200 ' if speaks else '- alice "POST /mcp" 499 0 ')
    assert line.endswith(" 3.000 s, left early")


async def test_access_log_records_rejected_requests_in_one_line_without_the_query(
    autojump_clock: MockClock, lines: pytest.LogCaptureFixture
) -> None:
    async with listening(Scene().server, auth=protected(issued()), access_log=True) as endpoint:
        for head in (
            b"GET /mcp?token=secret HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b'GET /a"b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n',
            b"nonsense\r\n\r\n",
        ):
            connection = await endpoint.connect()
            await connection.stream.send_all(head)
            connection.expect("GET")
            await connection.answer()
    words = [" ".join(line.split()[:5]) for line in said_by(lines)]
    assert words == ['- - "GET /mcp" 401', '- - "GET \'/a"b\'" 404', '- - "- -" 400']
    assert "secret" not in lines.text


async def test_access_log_shows_the_client_address_that_a_trusted_proxy_reports(
    lines: pytest.LogCaptureFixture,
) -> None:
    proxies = TrustedProxies(["127.0.0.1"])
    async with over_sockets(Scene().server, access_log=True, trusted_proxies=proxies) as endpoint:
        for header in ({}, {"X-Forwarded-For": "203.0.113.7"}):
            assert (await endpoint.ask("GET", {**BASE, **header})).status == 400
    words = [" ".join(line.split()[:5]) for line in said_by(lines)]
    assert words == ['127.0.0.1 - "GET /mcp" 400', '203.0.113.7 - "GET /mcp" 400']


async def test_access_log_is_off_by_default(lines: pytest.LogCaptureFixture) -> None:
    async with listening(Scene().server) as endpoint:
        assert (await endpoint.ask("GET", {**BASE})).status == 400
    assert said_by(lines) == []
