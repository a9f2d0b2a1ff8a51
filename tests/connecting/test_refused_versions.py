"""After a server refuses the version of `initialize`, the client tries one that the server names, or older ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.connecting.http import scripted as http
from tests.connecting.http.conftest import no_server_is_known_yet  # noqa: F401 - a fixture
from tests.interaction.client.raw import RawPeer, scripted

from trio_mcp import HTTPError, MCPError, PeerError, open_http
from trio_mcp.client.opening import open_client

LATEST, NEWER, OLDER, OLDEST = "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"
WORDS = "Bad Request: Unsupported protocol version (supported versions: {})"


async def call(got: http.Got, answer: http.Answer) -> None:
    await answer.json(http.text(got))


def refusing(answer_with: Any, *spoken: str) -> http.Handler:
    """Return a server that answers other versions than ``spoken`` by ``answer_with``."""

    async def handler(got: http.Got, answer: http.Answer) -> None:
        if got.name == "initialize" and got.message["params"]["protocolVersion"] not in spoken:
            await answer_with(got, answer, spoken)
        else:
            await http.legacy(call)(got, answer)

    return handler


async def in_words(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.whole(400, WORDS.format(", ".join(spoken)).encode())


async def without_id(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json({**http.error(got, -32000, WORDS.format(spoken)), "id": None}, 400)


async def with_id(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json(http.error(got, -32602, "Invalid protocol version"), 400)


async def empty(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.whole(400)


async def with_data(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json(http.error(got, -32602, "Unsupported protocol version", supported=[*spoken, 7], requested="x"))


async def without_data(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json(http.error(got, -32602, "Unsupported protocol version"))


def offers(server: http.ScriptedHttp) -> list[str]:
    return [got.message["params"]["protocolVersion"] for got in server.named("initialize")]


async def with_other_data(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json(http.error(got, -32602, "Unsupported", supportedVersions=list(spoken)))


async def by_validation(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
    await answer.json({"detail": f"protocolVersion: permitted: {spoken}"}, 422)


@pytest.mark.parametrize(
    ("refuse", "spoken", "offered"),
    [
        *((refuse, [OLDER, NEWER], [LATEST, NEWER]) for refuse in (in_words, without_id, with_id, empty, without_data)),
        *(
            (refuse, [OLDER], [LATEST, OLDER])
            for refuse in (in_words, without_id, with_data, with_other_data, by_validation)
        ),
        *((refuse, [OLDER], [LATEST, NEWER, OLDER]) for refuse in (with_id, empty, without_data)),
        *((refuse, [OLDEST], [LATEST, OLDEST]) for refuse in (in_words, without_id, with_data)),
        (with_data, [OLDEST, OLDER, NEWER], [LATEST, NEWER]),
    ],
)
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_client_retries_a_refused_protocol_version_with_a_version_that_the_server_supports(
    era: Any, refuse: Any, spoken: list[str], offered: list[str]
) -> None:
    async with http.serving(refusing(refuse, *spoken)) as server, open_http(server.url, era=era) as client:
        assert client.revision.name == offered[-1]
        assert (await client.call_tool("any")).text == "done"
    assert offers(server) == offered
    assert server.named("tools/call")[0].headers["mcp-protocol-version"] == offered[-1]


@pytest.mark.parametrize(("refuse", "offered"), [(in_words, 3), (empty, 3), (with_data, 1), (without_data, 3)])
async def test_client_tries_each_protocol_version_once(refuse: Any, offered: int) -> None:
    async with http.serving(refusing(refuse)) as server:
        with pytest.raises(MCPError):
            async with open_http(server.url, era="legacy"):
                pass
    assert offers(server) == [LATEST, NEWER, OLDER][:offered]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
async def test_client_tries_no_other_version_if_the_connection_is_refused_for_another_reason(
    status: int,
) -> None:
    async def refuse(got: http.Got, answer: http.Answer, spoken: tuple[str, ...]) -> None:
        await answer.whole(status, b"a version")

    async with http.serving(refusing(refuse)) as server:
        with pytest.raises(HTTPError):
            async with open_http(server.url, era="legacy"):
                pass
    assert offers(server) == [LATEST]


async def test_client_with_a_revision_option_tries_only_the_protocol_version_in_the_option() -> None:
    async with http.serving(refusing(with_data, OLDER)) as server:
        with pytest.raises(PeerError, match="Unsupported protocol version"):
            async with open_http(server.url, era="legacy", revision=NEWER):
                pass
    assert offers(server) == [NEWER]


@pytest.mark.parametrize("data", [{"supported": [OLDEST, OLDER], "requested": LATEST}, None])
async def test_client_retries_a_refused_protocol_version_with_another_version_over_stdio(
    autojump_clock: object, data: Any
) -> None:
    offered: list[str] = []

    async def script(peer: RawPeer) -> None:
        while True:
            opening = await peer.until("initialize")
            offered.append(opening["params"]["protocolVersion"])
            if offered[-1] == OLDER:
                break
            more = {} if data is None else {"data": data}
            await peer.send({"id": opening["id"], "error": {"code": -32602, "message": "bad protocolVersion", **more}})
        info = {"name": "raw", "version": "1"}
        await peer.send(
            {"id": opening["id"], "result": {"protocolVersion": OLDER, "capabilities": {}, "serverInfo": info}}
        )
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
    assert offered == ([LATEST, OLDER] if data else [LATEST, NEWER, OLDER])


async def test_client_raises_the_version_error_of_a_server_that_then_closes_the_connection() -> None:
    async def script(peer: RawPeer) -> None:
        opening = await peer.until("initialize")
        await peer.send({"id": opening["id"], "error": {"code": -32602, "message": "bad protocolVersion"}})
        await peer.close()

    async with scripted(script) as (channel, _):
        with pytest.raises(PeerError, match="bad protocolVersion"):
            async with open_client(channel, era="legacy"):
                pytest.fail("there is no session")
