"""Detection of a legacy or modern server over HTTP (2026-07-28 Streamable HTTP, Backward Compatibility)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.connecting.http.scripted import Answer, Got, discovered, error, initialized, legacy, serving, text

from trio_mcp import ConnectionLost, HTTPError, PeerError, ProtocolViolation, open_http

Refusal = Callable[[Got, Answer], Awaitable[None]]


async def call(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


def refused(status: int, body: bytes = b"", content_type: str = "text/plain") -> Refusal:
    async def refuse(got: Got, answer: Answer) -> None:
        await answer.whole(status, body, content_type=content_type)

    return refuse


def failed(code: int, status: int = 400, **data: Any) -> Refusal:
    async def fail(got: Got, answer: Answer) -> None:
        await answer.json(error(got, code, "no", **data), status)

    return fail


def refusing(refusal: Refusal) -> Refusal:
    """A legacy server that refuses the probe in this way."""
    then = legacy(call)

    async def handler(got: Got, answer: Answer) -> None:
        await (refusal if got.name == "server/discover" else then)(got, answer)

    return handler


@pytest.mark.parametrize(
    "refusal",
    [
        refused(400),
        refused(400, b"Bad Request: No valid session ID provided"),
        refused(404),
        refused(405),
        refused(406),
        refused(415),
        refused(202),
        refused(200, b"<html>", "text/html"),
        refused(400, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": "no"}}', "application/json"),
        refused(200, b"{}", "application/json"),
        failed(-32601, 200),
        failed(-32601, 404),
        failed(-32602),
        failed(-32020),
        failed(-32021),
        failed(-32001),
        failed(-32022, supported=["2025-11-25"]),
    ],
)  # fmt: skip
async def test_http_client_sends_initialize_if_the_server_rejects_discover(refusal: Refusal) -> None:
    async with serving(refusing(refusal)) as server:
        async with open_http(server.url) as client:
            assert client.revision.handshake
            assert (await client.call_tool("any")).text == "done"
        assert server.names[:3] == ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 504, 307])
async def test_discover_request_refused_with_a_temporary_http_status_raises_http_error(status: int) -> None:
    async with serving(refusing(refused(status, b"come back later"))) as server:
        with pytest.raises(HTTPError, match="come back later") as caught:
            async with open_http(server.url):
                pass
    assert caught.value.status == status
    assert server.names == ["server/discover"]


async def test_json_rpc_error_reply_with_a_temporary_http_status_raises_peer_error() -> None:
    async with serving(refusing(failed(-32603, 500))) as server:
        with pytest.raises(PeerError) as caught:
            async with open_http(server.url):
                pass
    assert caught.value.code == -32603
    assert server.names == ["server/discover"]


async def test_connection_closed_during_discover_raises_connection_lost() -> None:
    async def hang_up(got: Got, answer: Answer) -> None:
        await answer.cut()

    async with serving(refusing(hang_up)) as server:
        with pytest.raises(ConnectionLost):
            async with open_http(server.url):
                pass
    assert server.names == ["server/discover"]


async def test_http_client_does_not_retry_discover_a_second_time_after_the_same_version_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = 0

    async def handler(got: Got, answer: Answer) -> None:
        nonlocal refusals
        refusals += 1
        await answer.json(error(got, -32022, "no", supported=["2026-07-28", "2025-11-25"], requested="x"), 400)

    async with serving(handler) as server:
        with pytest.raises((PeerError, HTTPError)):
            async with open_http(server.url):
                pass
    assert server.names[:2] == ["server/discover", "server/discover"]
    assert server.names.count("server/discover") == 2


async def test_http_client_retries_discover_after_a_version_error_that_lists_the_requested_version() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if len(server.got) == 1:
            await answer.json(error(got, -32022, "no", supported=["2026-07-28"], requested="2026-07-28"), 400)
        else:
            await answer.json(discovered(got))

    async with serving(handler) as server, open_http(server.url) as client:
        assert client.revision.name == "2026-07-28"
    assert server.names == ["server/discover", "server/discover"]


async def test_modern_server_without_a_common_revision_raises_protocol_violation() -> None:
    async with serving(failed(-32022, supported=["2099-01-01"])) as server:
        with pytest.raises(ProtocolViolation, match="2099-01-01"):
            async with open_http(server.url):
                pass
    assert server.names == ["server/discover"]


@pytest.mark.parametrize(("era", "names"), [("modern", ["server/discover"]), ("legacy", ["initialize", "GET"])])
async def test_http_client_set_to_modern_revisions_sends_discover_and_set_to_legacy_revisions_initialize(
    era: Any, names: list[str]
) -> None:
    async with serving(refused(404)) as server:
        with pytest.raises(HTTPError) as caught:
            async with open_http(server.url, era=era):
                pass
    assert caught.value.status == 404
    assert server.names == names


async def test_revision_option_sets_the_protocol_version_header() -> None:
    async with serving(legacy(call)) as server:
        async with open_http(server.url, era="legacy", revision="2025-03-26") as client:
            assert client.revision.name == "2025-03-26"
            await client.call_tool("any")
        assert server.named("tools/call")[0].headers["mcp-protocol-version"] == "2025-03-26"


# What is remembered


async def test_client_sends_no_discover_to_an_http_server_remembered_as_legacy() -> None:
    async with serving(legacy(call)) as server:
        for _ in range(3):
            async with open_http(server.url):
                pass
        assert server.names.count("server/discover") == 1
        assert server.names.count("initialize") == 3


async def test_client_detects_a_modern_revision_of_an_http_server_remembered_as_legacy() -> None:
    is_modern = False

    async def handler(got: Got, answer: Answer) -> None:
        if not is_modern:
            await legacy(call)(got, answer)
        elif got.name == "server/discover":
            await answer.json(discovered(got))
        else:
            await answer.json(error(got, -32601), 404)

    async with serving(handler) as server:
        async with open_http(server.url):
            pass
        is_modern = True
        for _ in range(2):
            async with open_http(server.url) as client:
                assert not client.revision.handshake
        assert server.names[-3:] == ["initialize", "server/discover", "server/discover"]


async def test_client_still_treats_a_legacy_http_server_as_legacy_after_status_503() -> None:
    is_down = False

    async def handler(got: Got, answer: Answer) -> None:
        await (refused(503) if is_down else legacy(call))(got, answer)

    async with serving(handler) as server:
        async with open_http(server.url):
            pass
        is_down = True
        with pytest.raises(HTTPError):
            async with open_http(server.url):
                pass
        is_down = False
        async with open_http(server.url):
            pass
        assert server.names.count("server/discover") == 1


async def test_unsupported_revision_chosen_over_http_raises_protocol_violation() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        chosen = initialized(got)
        chosen["result"]["protocolVersion"] = "2024-10-07"
        await answer.json(chosen)

    async with serving(handler) as server:
        with pytest.raises(ProtocolViolation, match="2024-10-07"):
            async with open_http(server.url, era="legacy"):
                pass
    assert server.names == ["initialize"]
