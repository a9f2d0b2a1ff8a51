"""Where a server is, as data."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.connecting.http.authorizing import guarded
from tests.connecting.http.scripted import Answer, Got, modern, serving, text
from tests.interaction.client.raw import RawServer
from tests.patience import PATIENCE

from trio_mcp import (
    Address,
    BadTarget,
    Command,
    ConnectionLost,
    InMemory,
    Server,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.auth import Bearer
from trio_mcp.connecting.credentials import is_confidential
from trio_mcp.connecting.targets import Target, target_of


def greeter() -> Server:
    server = Server("greeter")

    @server.tool
    async def greet() -> str:
        return "hello"

    return server


async def greeted(target: Target) -> str:
    with trio.fail_after(PATIENCE):
        async with target.open(era="legacy") as client:
            return (await client.call_tool("greet")).text


async def test_client_opened_on_a_command_starts_a_process_with_its_environment(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'handshake(); note("env", env=os.environ["GIVEN"]); text(until("tools/call"), "hello")')
    assert await greeted(Command(raw.command, env={"GIVEN": "1"})) == "hello"
    assert raw.of("env")[0]["env"] == "1"


async def test_client_opened_on_an_in_memory_target_runs_the_server() -> None:
    assert await greeted(InMemory(greeter())) == "hello"


async def test_client_opened_on_an_address_selects_the_transport_by_url_scheme(socket_folder: Path) -> None:
    path = socket_folder / "a server.sock"
    async with trio.open_nursery() as nursery:
        web = await nursery.start(serve_websocket, greeter(), "127.0.0.1", 0)
        tcp = await nursery.start(serve_tcp, greeter(), "127.0.0.1", 0)
        await nursery.start(serve_unix, greeter(), path)
        ports = [listeners[0].socket.getsockname()[1] for listeners in (web, tcp)]
        assert await greeted(Address(f"ws://127.0.0.1:{ports[0]}/mcp", headers={"x-who": "me"})) == "hello"
        assert await greeted(Address(f"tcp://127.0.0.1:{ports[1]}")) == "hello"
        assert await greeted(Address(path.as_uri().replace("file:", "unix:"))) == "hello"
        nursery.cancel_scope.cancel()


async def test_unix_socket_address_without_a_listener_raises_connection_lost(socket_folder: Path) -> None:
    with pytest.raises(ConnectionLost, match=r"nobody\.sock"):
        await greeted(Address(f"unix://{socket_folder}/nobody.sock"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https:///mcp", "https://example.com/mcp"),
        ("ftp://example.com", "a URL must be like https://host/path"),
        ("server.py", "a URL must be like https://host/path"),
        ("npx -y server", r"not 'npx -y server'; pass a command as a list: \['npx', '-y', 'server'\]"),
        ("tcp://127.0.0.1", "tcp://127.0.0.1:8765"),
        ("tcp://:80", "tcp://127.0.0.1:8765"),
        ("unix://run/server.sock", "unix:///run/server.sock"),
        ("unix:", "unix:///run/server.sock"),
    ],
)
def test_unsupported_address_url_raises_value_error(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Address(url)


@pytest.mark.parametrize(
    "url",
    [
        *("tcp://u:secret@h", "tcp://u:secret@h:x", "tcp://u:secret@h:80", "unix://u:secret@run/s", "ftp://u:secret@h"),
        *("http://u:secret@[h", "wss://u:secret@/mcp", "https://u:secret@h/mcp", "HTTP://secret@h", "ws://:secret@h:0"),
    ],
)
def test_address_with_credentials_is_refused_without_revealing_the_password(url: str) -> None:
    with pytest.raises(BadTarget, match="must not contain a user or a password") as caught:
        Address(url)
    assert "secret" not in str(caught.value)


async def test_client_opened_from_an_address_sends_the_bearer_token_in_its_auth_option() -> None:
    async def greets(got: Got, answer: Answer) -> None:
        await answer.json(text(got, "hello"))

    async with serving(guarded(modern(greets))) as http, Address(http.url, auth=Bearer("good")).open() as client:
        assert (await client.call_tool("greet")).text == "hello"
    assert all(got.headers["authorization"] == "Bearer good" for got in http.got)


@pytest.mark.parametrize(
    "more", [{"headers": {"a": "b"}}, {"ssl_context": ssl.create_default_context()}, {"auth": Bearer("token")}]
)
def test_http_options_for_a_tcp_address_raise_value_error(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="need an HTTP or WebSocket URL"):
        Address("tcp://127.0.0.1:1", **more)


def test_address_with_an_authorization_header_and_auth_option_raises_bad_target() -> None:
    with pytest.raises(BadTarget, match="auth= sets that header"):
        Address("https://example.com/mcp", headers={"Authorization": "Bearer x"}, auth=Bearer("y"))


def test_repr_of_an_address_contains_no_secrets() -> None:
    address = Address("https://example.com/mcp", headers={"x-key": "the secret"})
    assert "the secret" not in repr(address)
    assert "the secret" not in repr(attrs.evolve(address, headers={}, auth=Bearer("the.secret")))


@pytest.mark.parametrize("words", ["python server.py", [], ()])
def test_command_that_is_not_a_list_of_strings_raises_value_error(words: Any) -> None:
    with pytest.raises(ValueError, match="a command must be a list"):
        Command(words)


def test_target_of_function_recognises_servers_urls_and_commands() -> None:
    server = Server("s")
    assert target_of(server) == InMemory(server)
    assert target_of("tcp://localhost:80") == Address("tcp://localhost:80")
    assert target_of([sys.executable, Path("server.py")]) == Command((sys.executable, "server.py"))
    assert target_of(Command(["a"], cwd="/")) == Command(["a"], cwd="/")


@pytest.mark.parametrize(
    ("url", "confidential"),
    [
        ("https://example.com/mcp", True),
        ("WSS://example.com/mcp", True),
        ("http://127.0.0.1:80/mcp", True),
        ("ws://localhost/mcp", True),
        ("http://[::1]/mcp", True),
        ("http://example.com/mcp", False),
        ("ws://192.168.0.1/mcp", False),
        ("http://localhost.example.com/", False),
        (f"ws://{'a' * 64}.example/mcp", False),
        ("tcp://127.0.0.1:80", False),
        ("unix:///run/mcp.sock", False),
        ("http+unix://%2Frun%2Fmcp.sock/mcp", True),
        ("HTTP+unix://%2Frun%2Fmcp.sock/mcp", True),
    ],
)
def test_client_may_send_tokens_only_over_tls_or_on_the_same_machine(url: str, confidential: bool) -> None:
    assert is_confidential(url) is confidential
