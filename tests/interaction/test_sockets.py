"""Lines over TCP and Unix sockets: stdio's framing, for many clients at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import signal
import socket
import stat
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import call, initialize, port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, Client, ConnectionLost, Limits, open_tcp, open_unix, serve_tcp, serve_unix
from trio_mcp.transports.sockets import keep_alive, unix_listener


async def test_clients_call_tools_over_tcp() -> None:
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0) as listeners:
            port = port_of(listeners)
            async with open_tcp("127.0.0.1", port, era="legacy") as one, open_tcp("127.0.0.1", port) as two:
                for client in (one, two):
                    assert (await client.call_tool("echo", {"text": "hi\n"})).text == "hi\n"


async def test_call_cancelled_over_tcp_stops_the_handler_and_keeps_the_connection() -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_tcp, watched.server, port=0) as listeners,
            open_tcp("127.0.0.1", port_of(listeners)) as client,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "hang")
                await watched.started.wait()
                nursery.cancel_scope.cancel(reason="enough")
            await watched.ended.wait()
            assert watched.causes == [(CancelCause.PEER, "enough")]
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_tcp_client_that_closes_its_sending_side_still_gets_its_answers() -> None:
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            async with stream:
                nap = call(1, "tools/call", {"name": "nap", "arguments": {"milliseconds": 20}})
                await stream.send_all(f"{initialize()}\n{nap}\n".encode())
                await stream.send_eof()
                received = b"".join([data async for data in stream])
    assert b'"slept"' in received


@pytest.mark.parametrize("address", ["/", "/" + "x" * 70_000], ids=["short", "longer than a message may be"])
async def test_tcp_server_closes_a_connection_that_sends_an_http_post_and_runs_no_handler(address: str) -> None:
    watched = watched_server()
    limits = Limits(max_message_bytes=65536)
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched.server, port=0, limits=limits) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            async with stream:
                body = f"{initialize()}\n{call(1, 'tools/call', {'name': 'hang'})}\n"
                await stream.send_all(f"POST {address} HTTP/1.1\r\nHost: x\r\n\r\n{body}".encode())
                assert b"".join([data async for data in stream]) == b""
    assert not watched.started.is_set()


FOREIGN = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the hello of TLS, in whose names a page may put what it likes
    b"SSH-2.0-OpenSSH_9.7",
    b"{bad",
    b"[",
    b'"text"',
]


@pytest.mark.parametrize("first", FOREIGN, ids=["tls", "ssh", "broken", "half an array", "a scalar"])
async def test_tcp_server_disconnects_a_client_whose_first_line_is_not_json(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    watched = watched_server()
    caplog.set_level("INFO", "trio_mcp")
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched.server, port=0) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            async with stream:
                body = f"{initialize()}\n{call(1, 'tools/call', {'name': 'hang'})}\n"
                await stream.send_all(first + b"\n" + body.encode())
                assert b"".join([data async for data in stream]) == b""
    assert not watched.started.is_set()
    assert "another protocol" in caplog.text


@pytest.mark.parametrize("before", [b"", b"\n \r\n", b"\xef\xbb\xbf", b"  "], ids=["nothing", "blank", "BOM", "spaces"])
async def test_tcp_client_gets_a_parse_error_for_an_invalid_line_after_a_valid_first_line(before: bytes) -> None:
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            async with stream:
                await stream.send_all(before + f"{initialize()}\n{{bad\n".encode())
                await stream.send_eof()
                answers = b"".join([data async for data in stream])
    assert b'"protocolVersion"' in answers
    assert b"-32700" in answers


async def test_tcp_server_that_gets_a_signal_ends_after_pending_calls_finish() -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_tcp, watched.server, port=0))
            async with open_tcp("127.0.0.1", port_of(listeners)) as client:

                async def signal_in_the_middle() -> None:
                    await watched.started.wait()
                    os.kill(os.getpid(), signal.SIGTERM)

                nursery.start_soon(signal_in_the_middle)
                assert (await client.call_tool("nap", {"milliseconds": 50})).text == "slept"
                await nap_on(client)


async def nap_on(client: Client) -> None:
    """Until the connection is gone."""
    with contextlib.suppress(ConnectionLost):
        while True:
            await client.call_tool("nap", {"milliseconds": 1})


async def test_tcp_connection_that_exceeds_the_connection_limit_is_closed() -> None:
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0, limits=Limits(max_connections=1)) as listeners:
            port = port_of(listeners)
            async with open_tcp("127.0.0.1", port) as client:
                with pytest.raises(ConnectionLost):
                    async with open_tcp("127.0.0.1", port):
                        pytest.fail("there is room for one")
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize(
    "said",
    [b"", b'{"jsonrpc": "2.0", "id"', b"\n \r\n\n", b"\xef\xbb\xbf\n"],
    ids=["nothing", "half", "blank lines", "byte order mark"],
)
async def test_tcp_client_that_sends_no_message_is_disconnected_after_handshake_timeout(
    said: bytes, jump_clock: MockClock
) -> None:
    limits = Limits(max_connections=1, handshake_timeout=LONG)
    with trio.fail_after(LONG + PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0, limits=limits) as listeners:
            port = port_of(listeners)
            async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
                await silent.send_all(said)
                await wait_all_tasks_blocked(0.01)  # it has been accepted
                jump_clock.jump(LONG)
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await silent.receive_some() == b""
            async with open_tcp("127.0.0.1", port) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_new_tcp_connection_beyond_the_limit_replaces_the_oldest_one_that_has_sent_no_message() -> None:
    limits = Limits(max_connections=8, handshake_timeout=10_000)  # which is four from one address
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0, limits=limits) as listeners:
            port = port_of(listeners)
            async with open_tcp("127.0.0.1", port) as spoken, contextlib.AsyncExitStack() as stack:
                silent: list[trio.SocketStream] = []
                for _ in range(3):
                    silent.append(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)))
                    await wait_all_tasks_blocked(0.01)  # it has been accepted
                async with open_tcp("127.0.0.1", port) as late:
                    assert await silent[0].receive_some() == b""
                    for client in (spoken, late):
                        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
                for stream in silent[1:]:
                    await stream.send_all(f"{initialize()}\n".encode())
                    assert b'"result"' in await stream.receive_some()


async def test_silent_tcp_connections_do_not_block_new_clients() -> None:
    limits = Limits(max_connections=20, handshake_timeout=10_000)
    with trio.fail_after(PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0, limits=limits) as listeners:
            port = port_of(listeners)
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(50):
                    await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                async with open_tcp("127.0.0.1", port) as client:
                    for _ in range(50):
                        await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                    assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_handshake_timeout_of_a_tcp_connection_does_not_apply_after_the_first_message(
    jump_clock: MockClock,
) -> None:
    limits = Limits(handshake_timeout=LONG)
    with trio.fail_after(5 * LONG + PATIENCE):
        async with serving(serve_tcp, watched_server().server, port=0, limits=limits) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            async with stream:
                for line in (f"\n{initialize()}\n", f"{call(1, 'ping')}\n"):
                    await stream.send_all(line.encode())
                    assert await stream.receive_some()
                    jump_clock.jump(2 * LONG)


KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
]


@pytest.mark.parametrize(
    ("interval", "timeout", "options"),
    [
        (20, 20, [1, 20, 5, 4, 40_000]),
        (0.1, 0.1, [1, 1, 1, 4, 2000]),
        (1e9, math.inf, [1, 32767, 32767, 4, 65_534_000]),
    ],
)
async def test_tcp_keep_alive_options_are_set_from_interval_and_timeout(
    interval: float, timeout: float, options: list[int]
) -> None:
    async with (
        serving(serve_tcp, watched_server().server, port=0) as listeners,
        await trio.open_tcp_stream("127.0.0.1", port_of(listeners)) as stream,
    ):
        keep_alive(stream, interval, timeout)
        assert [stream.getsockopt(*option) for option in KEEP_ALIVE] == options


async def test_tcp_keep_alive_is_enabled_on_client_and_server_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, bytes | int]] = []
    set_option = trio.SocketStream.setsockopt

    def note(stream: trio.SocketStream, level: int, option: int, value: Any) -> None:
        if (level, option) == KEEP_ALIVE[0]:
            looked.append((stream.socket.fileno(), value))
        set_option(stream, level, option, value)

    monkeypatch.setattr(trio.SocketStream, "setsockopt", note)
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_tcp, watched_server().server, port=0) as listeners,
            open_tcp("127.0.0.1", port_of(listeners)),
        ):
            assert len(set(looked)) == 2


async def test_unix_socket_has_mode_600_and_is_removed_at_exit(socket_folder: Path) -> None:
    path = socket_folder / "mcp.sock"
    with trio.fail_after(PATIENCE):
        async with serving(serve_unix, watched_server().server, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            async with open_unix(path) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    assert not path.exists()


async def test_unix_socket_file_left_by_a_dead_server_is_replaced(socket_folder: Path) -> None:
    path = socket_folder / "mcp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with trio.fail_after(PATIENCE):
        async with serving(serve_unix, watched_server().server, path), open_unix(path) as client:
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_unix_socket_of_a_live_server_is_not_replaced(socket_folder: Path) -> None:
    path = socket_folder / "mcp.sock"
    with trio.fail_after(PATIENCE):
        async with serving(serve_unix, watched_server().server, path):
            with pytest.raises(OSError, match="another server is already listening on this address"):
                await serve_unix(watched_server().server, path)
            async with open_unix(path) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_only_one_of_many_starting_servers_takes_over_the_unix_socket_of_a_dead_server(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    ready, settled = threading.Barrier(8), threading.Barrier(8)

    async def listen() -> bool:
        ready.wait(PATIENCE)
        try:
            with unix_listener(path):
                settled.wait(PATIENCE)  # nobody goes before all have tried
            return True
        except OSError as error:
            settled.wait(PATIENCE)
            if error.errno != errno.EADDRINUSE:
                raise
            return False

    async def start() -> None:
        listening.append(await trio.to_thread.run_sync(trio.run, listen))

    listening: list[bool] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(start)
    assert listening.count(True) == 1
    assert not path.exists()


async def test_server_does_not_replace_a_unix_socket_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    other = os.open(tmp_path / "mcp.sock.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as starting:
            starting.bind(str(path))  # and does not listen yet
            with pytest.raises(OSError, match="locked"):
                await serve_unix(watched_server().server, path)
        assert path.exists()
    finally:
        os.close(other)


async def test_unix_socket_server_starts_without_delay_if_its_directory_is_locked_with_flock(
    socket_folder: Path,
) -> None:
    anybody = os.open(socket_folder, os.O_RDONLY)
    try:
        fcntl.flock(anybody, fcntl.LOCK_EX)
        with trio.fail_after(PATIENCE):
            async with serving(serve_unix, watched_server().server, socket_folder / "mcp.sock"):
                assert os.listdir(socket_folder) == ["mcp.sock"]
    finally:
        os.close(anybody)


async def test_stale_unix_socket_lock_file_of_a_killed_server_is_reused_and_removed(socket_folder: Path) -> None:
    (socket_folder / "mcp.sock.lock").touch(0o600)
    with trio.fail_after(PATIENCE):
        async with serving(serve_unix, watched_server().server, socket_folder / "mcp.sock"):
            assert os.listdir(socket_folder) == ["mcp.sock"]


async def test_unix_socket_lock_file_that_is_a_symlink_or_fifo_is_refused(socket_folder: Path) -> None:
    lock = socket_folder / "mcp.sock.lock"
    for make in (partial(os.symlink, socket_folder / "elsewhere"), os.mkfifo):
        make(lock)
        with trio.fail_after(PATIENCE), pytest.raises(OSError, match=r"mcp\.sock\.lock"):
            await serve_unix(watched_server().server, socket_folder / "mcp.sock")
        assert os.listdir(socket_folder) == ["mcp.sock.lock"]
        lock.unlink()


async def test_unix_socket_lock_file_with_content_raises_os_error_and_is_kept(socket_folder: Path) -> None:
    lock = socket_folder / "mcp.sock.lock"
    lock.write_text("of the application")
    with trio.fail_after(PATIENCE), pytest.raises(OSError, match="not a lock file"):
        await serve_unix(watched_server().server, socket_folder / "mcp.sock")
    assert lock.read_text() == "of the application"
    assert os.listdir(socket_folder) == ["mcp.sock.lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file somebody else's")
async def test_unix_socket_lock_file_of_another_user_is_refused(socket_folder: Path) -> None:
    lock = socket_folder / "mcp.sock.lock"
    lock.touch(0o666)
    os.chown(lock, 65534, 65534)
    with trio.fail_after(PATIENCE), pytest.raises(OSError, match="belongs to another user"):
        await serve_unix(watched_server().server, socket_folder / "mcp.sock")
    assert os.listdir(socket_folder) == ["mcp.sock.lock"]


async def test_unix_socket_has_mode_600_despite_a_permissive_umask(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    mask = os.umask(0)
    try:
        async with serving(serve_unix, watched_server().server, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(mask)


async def test_broken_symlink_at_the_unix_socket_path_raises_os_error_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="a broken symbolic link"):
        await serve_unix(watched_server().server, path)
    assert path.is_symlink()


async def test_symlink_to_a_file_at_the_unix_socket_path_raises_os_error_and_is_kept(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "mcp.sock"
    precious.write_text("data")
    path.symlink_to(precious)
    with pytest.raises(OSError, match="not name a socket"):
        await serve_unix(watched_server().server, path)
    assert path.is_symlink()
    assert precious.read_text() == "data"


async def test_socket_path_that_is_too_long_raises_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        await serve_unix(watched_server().server, tmp_path / ("x" * 200))
    assert os.listdir(tmp_path) == []


async def test_open_connections_continue_after_the_unix_socket_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    with trio.fail_after(PATIENCE):
        async with serving(serve_unix, watched_server().server, path), open_unix(path) as client:
            path.unlink()
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_regular_file_at_the_unix_socket_path_raises_os_error_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match="not name a socket"):
        await serve_unix(watched_server().server, path)
    assert path.read_text() == "data"


async def test_file_that_replaced_the_unix_socket_is_not_removed(socket_folder: Path) -> None:
    path = socket_folder / "mcp.sock"
    async with serving(serve_unix, watched_server().server, path):
        path.unlink()
        path.write_text("theirs")
    assert path.read_text() == "theirs"


async def test_tcp_or_unix_socket_connect_without_a_listener_raises_connection_lost(socket_folder: Path) -> None:
    with pytest.raises(ConnectionLost, match="no connection to"):
        async with open_unix(socket_folder / "nobody"):
            pytest.fail("nobody is there")
    with pytest.raises(ConnectionLost, match="port 1"):
        async with open_tcp("127.0.0.1", 1):
            pytest.fail("nobody is there")
