"""Invalid target arguments are refused with advice."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from trio_mcp import BadTarget, Server, http_app, open_http, open_tcp, open_unix, open_websocket, serve_http, serve_unix

URLS: Any = {open_http: "http://127.0.0.1:9/mcp", open_websocket: "ws://127.0.0.1:9/mcp"}
BY_HEADERS = pytest.mark.parametrize("connect", URLS, ids=lambda function: function.__name__)

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def refused(error: type[Exception], words: str, connection: AbstractAsyncContextManager[Any]) -> None:
    with pytest.raises(error, match=words):
        async with connection:
            await trio.sleep_forever()


@BY_HEADERS
@pytest.mark.parametrize(
    ("headers", "error", "words"),
    [
        ({"X-Name": "a\u2028b"}, ValueError, "X-Name has an invalid character"),
        ({"X-Name": "a\r\nb: c"}, ValueError, "X-Name has an invalid character"),
        ({"Bad Name": "a"}, ValueError, "not a valid name for an HTTP header: 'Bad Name'"),
        ({"Upgrade": "h2c"}, ValueError, "the header Upgrade is reserved: the client writes it itself"),
        ({"Sec-WebSocket-Key": "a"}, ValueError, "the client writes it itself"),
        ({"X-Name": 5}, TypeError, "the value of 'X-Name' is a int"),
        ([("X-Name", "a")], TypeError, "headers must be a mapping"),
    ],
)
async def test_invalid_headers_are_refused_by_every_connect_function(
    connect: Any, headers: Any, error: type[Exception], words: str
) -> None:
    await refused(error, words, connect(URLS[connect], headers=headers))


@BY_HEADERS
@pytest.mark.parametrize("path", ["/\ud800", "/ä", "/a b"], ids=ascii)
async def test_url_path_with_invalid_characters_raises_bad_target(connect: Any, path: str) -> None:
    await refused(BadTarget, "printable", connect(URLS[connect].replace("/mcp", path)))


@BY_HEADERS
@pytest.mark.parametrize("url", [5, b"http://127.0.0.1:9/mcp", None])
async def test_url_that_is_not_a_string_raises_type_error(connect: Any, url: Any) -> None:
    await refused(TypeError, "a URL must be a string, '(http|ws)://127.0.0.1", connect(url))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "must not be empty"),
        ("a\0b", "must not be empty or contain NUL"),
        ("/tmp/\ud800", "must be a valid file name"),
        ("x" * 200, "too long, with 200 bytes"),
    ],
    ids=["empty", "NUL", "surrogate", "long"],
)
async def test_invalid_unix_socket_path_is_refused(path: str, words: str) -> None:
    with pytest.raises(BadTarget, match=words):
        open_unix(path)
    with pytest.raises(OSError if path[:1] == "x" else ValueError, match=words):
        await serve_unix(Server("s"), path)


@pytest.mark.parametrize("address", [(5, 5), ("localhost", "80"), (None, 80)])
async def test_host_and_port_of_wrong_types_raise_type_error(address: Any) -> None:
    with pytest.raises(TypeError, match="the host must be a string and the port an integer"):
        open_tcp(*address)


@pytest.mark.parametrize("path", ["mcp", "/\ud800", "/mcp?a=b", "/ä", 5], ids=ascii)
async def test_invalid_http_endpoint_path_raises_value_error(path: Any) -> None:
    with pytest.raises(ValueError, match="path must be like /mcp"):
        await serve_http(Server("s"), port=0, path=path)
    with pytest.raises(ValueError, match="path must be like /mcp"):
        http_app(Server("s"), path=path, allowed_origins=[], allowed_hosts=["a"])
