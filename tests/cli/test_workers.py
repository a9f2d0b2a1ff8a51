"""``trio-mcp run`` with several worker processes on one port, and with ``--reload``."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, Running, answer_to, forked, run, running, written
from tests.cli.terminals import in_terminal
from tests.forked import Forked
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import Client, ConnectionLost, MCPError, open_http

SERVER = """
    import os
    import sys
    import trio
    from trio_mcp import Limits, Server

    server = Server("shared", limits=Limits(drain_timeout=5))

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    async def wait(path: str) -> int:
        print("asleep", file=sys.stderr, flush=True)
        async with await trio.open_file(path) as pipe:  # waits until the other end is opened
            await pipe.read()
        return os.getpid()
"""
READY = r"serving 'shared' at (http://127\.0\.0\.1:\d+/mcp) with (?:2 workers|a worker);"


async def pid_of(url: str) -> int:
    """The process that serves a new connection."""
    with trio.fail_after(PATIENCE):
        async with open_http(url, era="modern") as client:
            return int((await client.call_tool("pid")).text)


async def until_gone(pid: int) -> None:
    with trio.fail_after(PATIENCE), suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            await trio.lowlevel.wait_readable(process)
        finally:
            os.close(process)


async def test_worker_that_dies_is_replaced_and_the_port_stays_open(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        url = await server.line(READY)
        pids = {await pid_of(url)}
        while len(pids) < 2:
            pids.add(await pid_of(url))
        victim, other = pids
        os.kill(victim, signal.SIGKILL)
        assert int(await server.line(r"worker (\d+) has ended with status -9; starting another")) == victim
        assert await pid_of(url) == other
        new = int(await server.line(rf"worker (\d+) replaces {victim}"))
        os.kill(other, signal.SIGSTOP)  # so that the new one has to answer
        assert await pid_of(url) == new
        os.kill(other, signal.SIGCONT)
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await server.process.ended() == 0
        await until_gone(other)


async def test_no_call_fails_while_sighup_replaces_each_worker_by_a_new_one(tmp_path: Path) -> None:
    file, done = written(tmp_path / "server.py", SERVER), tmp_path / "done"
    os.mkfifo(done)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        before = await pid_of(url)
        answers: list[int] = []

        async def call(client: Client) -> None:
            answers.append(int((await client.call_tool("wait", {"path": str(done)})).text))

        with trio.fail_after(PATIENCE):
            async with open_http(url, era="modern") as client, trio.open_nursery() as nursery:
                nursery.start_soon(call, client)
                await server.line("(asleep)")
                server.process.send_signal(signal.SIGHUP)
                after = int(await server.line(rf"worker (\d+) replaces {before}"))
                await trio.Path(done).write_text("")
            assert answers == [before]
            await until_gone(before)
            assert await pid_of(url) == after


async def test_clients_that_connect_during_worker_replacement_are_served(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        pids: list[int] = []

        async def call_on() -> None:
            while True:
                pids.append(await pid_of(url))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call_on)
            for _ in range(3):
                server.process.send_signal(signal.SIGHUP)
                await until_gone(int(await server.line(r"replaces (\d+)")))
            nursery.cancel_scope.cancel(reason="no call has failed")
        assert len(set(pids)) == 4


async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--workers", "1", "--stateless") as server:
        pid = await pid_of(await server.line(READY))
        server.process.send_signal(signal.SIGKILL)
        await until_gone(pid)


async def test_reload_keeps_the_old_server_if_the_changed_file_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    monkeypatch.chdir(tmp_path)
    async with running("run", file, "--http", "0", "--reload") as server:
        url = await server.line(READY)
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="modern") as client:
                before = (await client.call_tool("pid")).text
                written(tmp_path / "server.py", "this is no Python")
                await server.line("(the new version did not start; the old one keeps running)")
                assert (await client.call_tool("pid")).text == before
                written(tmp_path / "server.py", SERVER.replace("os.getpid()", "42"))
                await server.line("(replaces)")
                await until_gone(int(before))
                assert (await client.call_tool("pid")).text == "42"


def workers_of(server: Running) -> set[int]:
    """The processes that the supervisor has started and that have not ended."""
    found: set[int] = set()
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():  # each has the processes that it has started
        with suppress(OSError):  # it has ended
            found |= {int(each) for each in (thread / "children").read_text().split()}
    return found


async def until_workers_are(server: Running, count: int) -> set[int]:
    """Wait until so many processes are there, and return them."""
    with trio.fail_after(PATIENCE):
        while len(workers := workers_of(server)) != count:  # noqa: ASYNC110 - the system has no event for children
            await trio.sleep(0.01)
    return workers


def is_python(pid: int) -> bool:
    """Whether the process of a worker runs its own program, and no longer a copy of ours."""
    return b"-m\0trio_mcp.cli\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def freeze(pid: int) -> None:
    """Stop a worker that runs Python already: only then is what its signals do its own affair."""
    with trio.fail_after(PATIENCE):
        while not is_python(pid):  # noqa: ASYNC110
            await trio.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        while not is_in(pid, "T"):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def end(server: Running) -> None:
    """End the supervisor in good order, and see its workers gone."""
    workers = workers_of(server)
    server.process.send_signal(signal.SIGTERM)
    with trio.fail_after(PATIENCE):
        assert await server.process.ended() == 0
    for pid in workers:
        await until_gone(pid)


AT_IMPORT = """
    import sys
    from pathlib import Path

    print("imported", file=sys.stderr, flush=True)
    gate = Path(__file__).with_name("gate")
    if gate.exists():
        gate.read_text()  # waits, in the system, until the test opens the other end
"""


async def test_worker_killed_during_a_reload_is_replaced_by_the_new_worker_that_is_starting(tmp_path: Path) -> None:
    file, gate = written(tmp_path / "server.py", AT_IMPORT + SERVER), tmp_path / "gate"
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        old = await pid_of(url)
        os.mkfifo(gate)
        server.process.send_signal(signal.SIGHUP)
        await server.line("(imported)")
        os.kill(old, signal.SIGKILL)
        await server.line(rf"(worker {old} has ended with status -9)")
        await trio.Path(gate).write_text("")
        new = int(await server.line(rf"worker (\d+) replaces {old}"))
        assert await pid_of(url) == new
        assert await until_workers_are(server, 1) == {new}
        await end(server)


async def test_new_version_that_hangs_at_import_is_ended_by_the_next_reload(tmp_path: Path) -> None:
    file, gate = written(tmp_path / "server.py", AT_IMPORT + SERVER), tmp_path / "gate"
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        old = await pid_of(url)
        os.mkfifo(gate)
        server.process.send_signal(signal.SIGHUP)
        await server.line("(imported)")
        (hanging,) = workers_of(server) - {old}
        assert await pid_of(url) == old
        gate.unlink()
        server.process.send_signal(signal.SIGHUP)
        await server.line(rf"(replaces {old})")
        await until_gone(hanging)
        await until_gone(old)
        await end(server)


MISBEHAVED = """
    import os
    import stat

    for number in range(3, 100):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                {act}
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "act", ["os.write(number, bytes([0xff, 10]))", "os.close(number)", "os.write(number, b'x' * 99999)"]
)
async def test_new_worker_that_closes_or_corrupts_its_sockets_does_not_replace_an_old_worker(
    tmp_path: Path, act: str
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        old = await pid_of(url)
        written(tmp_path / "server.py", MISBEHAVED.format(act=act) + SERVER)
        server.process.send_signal(signal.SIGHUP)
        await server.line("(the new version did not start; the old one keeps running)")
        assert await pid_of(url) == old
        written(tmp_path / "server.py", SERVER)
        server.process.send_signal(signal.SIGHUP)
        new = int(await server.line(rf"worker (\d+) replaces {old}"))
        await until_gone(old)
        assert await until_workers_are(server, 1) == {new}
        await end(server)


async def test_repeated_sighups_leave_the_number_of_workers_unchanged(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        url = await server.line(READY)
        before = await until_workers_are(server, 2)
        for _ in range(5):
            server.process.send_signal(signal.SIGHUP)
            await server.line(r"(replaces)")  # others of that reload are to follow
            server.process.send_signal(signal.SIGHUP)
        for each in before:
            await until_gone(each)
        await until_workers_are(server, 2)
        assert await pid_of(url) in workers_of(server)
        await end(server)


async def test_workers_continue_and_the_exit_status_is_kept_if_stderr_is_closed(tmp_path: Path) -> None:
    file, port = written(tmp_path / "server.py", AT_IMPORT + SERVER), free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    async with running("run", file, "--http", str(port), "--stateless", "--workers", "1") as server:
        await server.line(READY)
        await server.close_stderr()
        old = await pid_of(url)
        os.kill(old, signal.SIGKILL)
        await until_gone(old)
        new = await pid_of(url)  # although its file prints when it is imported
        server.process.send_signal(signal.SIGHUP)
        await until_gone(new)
        assert await pid_of(url) not in (old, new)
        await end(server)


async def test_unread_stderr_does_not_block_supervisor_or_workers(tmp_path: Path) -> None:
    file, port = written(tmp_path / "server.py", SERVER), free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 4096)
    os.set_blocking(writes, True)
    command = [*TRIO_MCP, "run", file, "--http", str(port), "--stateless", "--workers", "1"]
    process = forked(command, os.open(os.devnull, os.O_RDONLY), os.dup(1), writes)
    try:
        old = await pid_when_served(url)
        os.kill(old, signal.SIGKILL)
        await until_gone(old)
        assert await pid_of(url) != old
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await process.ended() == 0
    finally:
        process.kill()
        os.close(reads)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
async def test_standard_streams_closed_at_start_are_dev_null_in_the_workers(tmp_path: Path, closed: str) -> None:
    file, port = written(tmp_path / "server.py", AT_IMPORT + SERVER), free_port()
    command = f"exec {shlex.join(TRIO_MCP)} run {file} --http {port} --stateless --workers 1 {closed}"
    process = await trio.lowlevel.open_process(["sh", "-c", command])
    try:
        worker = await pid_when_served(f"http://127.0.0.1:{port}/mcp")
        assert [os.readlink(f"/proc/{worker}/fd/{number}") for number in (0, 2)] == [os.devnull] * 2
        process.terminate()
        with trio.fail_after(PATIENCE):
            assert await process.wait() == 0
    finally:
        process.kill()


async def pid_when_served(url: str) -> int:
    """The process that serves there, once one does."""
    with trio.fail_after(PATIENCE):
        while True:
            with suppress(ConnectionLost):
                return await pid_of(url)
            await trio.sleep(0.05)


async def test_worker_that_does_not_react_is_killed_and_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER.replace("drain_timeout=5", "drain_timeout=0, shutdown_grace=0"))
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        await server.line(READY)
        frozen = max(await until_workers_are(server, 2))
        await freeze(frozen)
        server.process.send_signal(signal.SIGTERM)
        await server.line(rf"(worker {frozen} did not end in time and was killed)")
        with trio.fail_after(PATIENCE):
            assert await server.process.ended() == 0
        await until_gone(frozen)


async def test_workers_that_die_repeatedly_do_not_end_the_supervisor(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        worker = await pid_of(url)
        written(tmp_path / "server.py", "raise SystemExit(9)")
        os.kill(worker, signal.SIGKILL)
        for pause in ("", " in 2 s", " in 4 s"):
            await server.line(rf"(has ended with status -?9; starting another{pause}\n)")
        written(tmp_path / "server.py", SERVER)
        server.process.send_signal(signal.SIGHUP)  # which waits for no pause
        new = int(await server.line(rf"worker (\d+) replaces {worker}"))
        assert await pid_of(url) == new
        await end(server)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGCONT])
async def test_port_of_a_killed_supervisor_is_free_immediately(tmp_path: Path, number: int) -> None:
    file, port = written(tmp_path / "server.py", SERVER), str(free_port())
    arguments = ("run", file, "--http", port, "--stateless", "--workers", "2")
    async with running(*arguments) as server:
        url = await server.line(READY)
        workers: set[int] = set()
        while len(workers) < 2:
            workers.add(await pid_of(url))
        if number == signal.SIGSTOP:
            await freeze(min(workers))  # which keeps its sockets
        server.process.send_signal(signal.SIGKILL)
        try:
            async with running(*arguments) as other:
                assert await pid_of(await other.line(READY)) not in workers
        finally:
            with suppress(ProcessLookupError):  # the system ends stopped processes whose parent is gone
                os.kill(min(workers), signal.SIGCONT)
        for each in workers:
            await until_gone(each)


COMPUTES = """
    import time

    @server.tool
    async def compute() -> None:
        while True:
            pass
"""


async def test_worker_in_an_endless_loop_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    code = SERVER.replace("drain_timeout=5", "drain_timeout=0, shutdown_grace=0") + COMPUTES
    file, port = written(tmp_path / "server.py", code), free_port()
    async with running("run", file, "--http", str(port), "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        worker = await pid_of(url)

        async def call() -> None:
            with suppress(MCPError):
                async with open_http(url, era="modern") as client:
                    await client.call_tool("compute")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            with trio.fail_after(PATIENCE):
                while not is_in(worker, "R"):  # noqa: ASYNC110 - seen from outside
                    await trio.sleep(0.01)
            server.process.send_signal(signal.SIGKILL)
            with trio.fail_after(PATIENCE):
                while not can_be_bound(port):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await until_gone(worker)


def is_in(pid: int, states: str) -> bool:
    """Whether the main thread is in one of the states that proc(5) lists."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in states


def can_be_bound(port: int) -> bool:
    with socket.socket() as each:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            each.bind(("127.0.0.1", port))
            each.listen()
        except OSError:
            return False
    return True


async def test_supervisor_and_workers_end_when_their_terminal_closes(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    command = [*TRIO_MCP, "run", file, "--http", "0", "--stateless", "--workers", "1"]
    async with in_terminal(command) as terminal:
        with trio.fail_after(PATIENCE):
            await terminal.read_until("press Ctrl-C to stop")
            terminal.close()
            process = terminal.process
            assert isinstance(process, Forked)
            assert await process.ended() == 0


async def test_after_rapid_file_changes_only_a_worker_with_the_last_version_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    monkeypatch.chdir(tmp_path)
    async with running("run", file, "--http", "0", "--reload") as server:
        url = await server.line(READY)
        for number in range(1, 9):
            await server.line("(files have changed)") if number > 1 else None
            written(tmp_path / "server.py", SERVER.replace("os.getpid()", str(number)))
        with trio.fail_after(PATIENCE):
            while await pid_of(url) != 8:
                pass
        await until_workers_are(server, 1)
        await end(server)


async def test_file_that_raises_at_start_is_reported_once_and_ends_all_workers(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", "raise RuntimeError('broken')")
    ended = await run([*TRIO_MCP, "run", file, "--http", "0", "--stateless", "--workers", "3"])
    assert ended.status == 1
    assert ended.stderr.count("RuntimeError: broken") == 1


async def test_run_command_with_workers_reports_a_port_in_use_in_one_line(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = str(listener.socket.getsockname()[1])
        ended = await run([*TRIO_MCP, "run", file, "--http", port, "--stateless", "--workers", "2"])
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert "cannot listen on this address" in ended.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "2"], "needs --shared or --stateless"),
        (["--workers", "1"], "need --http"),
        (["--reload"], "need --http"),
        (["--http", "0", "--workers", "2"], "needs --shared or --stateless"),
        (["--http", "0", "--scope", "a"], "need --issuer"),
        (["--http", "0", "--no-require-typ"], "need --issuer"),
        (["--http", "0", "--trust-http", "idp"], "need --issuer"),
        (["--http", "0", "--issuer", "https://login.example.com"], "--issuer needs --resource"),
        (["--http", "0", "--issuer", "nonsense", "--resource", "https://mcp.example.com/mcp"], "nonsense"),
        (["--tcp", "0", "--health"], "needs --http"),
    ],
)
async def test_run_command_reports_contradictory_options_as_usage_errors(
    tmp_path: Path, options: list[str], told: str
) -> None:
    ended = await run([*TRIO_MCP, "run", written(tmp_path / "server.py", SERVER), *options])
    assert ended.status == 2
    assert told in ended.stderr


async def test_run_command_with_issuer_and_health_options_requires_tokens_and_serves_health_checks(
    tmp_path: Path,
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    tokens = ["--issuer", "https://login.example.com", "--resource", "https://mcp.example.com/mcp", "--scope", "notes"]
    async with running("run", file, "--http", "0", "--health", *tokens) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        refused = await answer_to(url, "POST", "/mcp")
        assert refused.startswith(b"HTTP/1.1 401 ")
        assert b'scope="notes"' in refused
        assert (await answer_to(url, "GET", "/readyz")).startswith(b"HTTP/1.1 200 ")


async def test_error_for_issuer_option_without_the_auth_extra_names_the_extra_to_install(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    (tmp_path / "joserfc.py").write_text("raise ImportError")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from trio_mcp.cli.main import main; main()"
    tokens = ["--issuer", "https://login.example.com", "--resource", "https://mcp.example.com/mcp"]
    ended = await run([sys.executable, "-c", program, "run", file, "--http", "0", *tokens])
    assert ended.status == 2
    assert ended.stderr.splitlines()[-1].endswith("checking signatures needs joserfc: install trio-mcp[auth]")


async def test_options_of_the_run_command_can_be_set_by_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    for name, value in {"HTTP": "0", "PATH": "/here", "HEALTH": "1"}.items():
        monkeypatch.setenv(f"TRIO_MCP_{name}", value)
    async with running("run", file) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/here);")
        assert (await answer_to(url, "GET", "/healthz")).startswith(b"HTTP/1.1 200 ")


async def test_run_command_exits_with_status_0_after_a_signal_while_a_worker_starts(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        await server.line(READY)  # of the first one; the second one begins now
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await server.process.ended() == 0
