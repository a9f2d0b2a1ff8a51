"""Child processes that end together with all their descendants, the `ProcessGroup`.

`ProcessTransport` is the client side of stdio: it runs a server as a child process, from its start until all processes
in its group have ended. The last lines on standard error are kept to explain failures. `run_process_tree` runs a
process on behalf of a handler, and ends it when the handler ends."""

from __future__ import annotations

import codecs
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, Final, Protocol, cast

import trio

from ..concurrency.misuse import check_options
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..jsonrpc.errors import clean
from ..runtime.transport import ConnectionLost
from .lines import LineTransport

INHERITED_ENVIRONMENT: Final = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH"),
    *("SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"),
)
"""Names of the environment variables that a child process gets by default: enough to run, and no secrets."""

logger = logging.getLogger("trio_mcp")

_OBITUARY_WAIT: Final = 0.3
_REAPING_WAIT: Final = 1.0
"""Seconds to wait for the exit of a child process after SIGKILL."""
_LONGEST: Final = 100
"""Maximum number of characters of a program's name in an error message."""


class ProcessTransport(LineTransport):
    """A transport to a child process, over its standard input and output. `start_process` creates this object.

    The task that starts the process runs `drain_stderr` in the background. At the end it calls `shut_down`, with
    `discard_output` in the background, and `kill` if `shut_down` was interrupted.
    """

    def __init__(
        self, process: trio.Process, max_message_bytes: int, stderr: TextSink | None, started_at: float
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.child = (process.pid, started_at)
        self._stdin: trio.abc.SendStream = process.stdin
        self._pipes = trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream](process.stdin, process.stdout)
        super().__init__(self._pipes, max_message_bytes)
        self._sink = stderr
        self._tail = LastLines()
        self._drained = trio.Event()
        self._early_lines = LastLines()
        self._discarded = trio.Event()
        self._pipes.receive_stream = EarlyOutput(process.stdout, self._early_lines.write)
        self._keeps_input = False
        self._group = ProcessGroup(process.pid)

    @property
    def pid(self) -> int:
        """Process id of the child process."""
        return self._process.pid

    async def receive(self) -> bytes | bytearray:
        """Receive the next message: see `FramedTransport.receive`."""
        try:
            return await super().receive()
        except (trio.EndOfChannel, ConnectionLost):
            raise await self.exit_error("the server closed its output") from None

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages: see `FramedTransport.send`."""
        try:
            await super().send(messages)
        except ConnectionLost:
            raise await self.exit_error("the server closed its input") from None

    async def exited(self) -> None:
        """Wait until the child process has exited.

        Processes that the child has started may still run, and keep its output open.
        """
        await self._process.wait()

    async def exit_error(self, reason: str) -> ConnectionLost:
        """Return a `ConnectionLost` that explains why the connection to the child process has ended.

        Wait up to 0.3 seconds for its exit status and last lines. If it hasn't exited, the error contains ``reason``.
        """
        with trio.move_on_after(_OBITUARY_WAIT):
            await self._process.wait()
            reason = "the server exited"
            await self._drained.wait()
        return ConnectionLost(reason, exit_status=self._process.returncode, stderr=self._tail.lines)

    def stop_recording_output(self) -> None:
        """Stop recording the child's standard output for error messages. Call this when the MCP connection is open."""
        self._pipes.receive_stream = cast("trio.abc.ReceiveStream", self._process.stdout)
        self._discarded.set()

    @property
    def last_lines(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The last lines of the child's standard error, and the last lines of its standard output.

        The lines on standard output are those before `stop_recording_output` that aren't messages.
        """
        said = (
            line for line in self._early_lines.lines if '"jsonrpc"' not in line and not line.startswith('{"result"')
        )
        return self._tail.lines, tuple(said)

    def keep_input(self, *, open: bool) -> None:
        """Set whether `aclose` leaves the child's input open. If so, `shut_down` will close it.

        A KeyboardInterrupt between `aclose` and `shut_down` then shortens the wait for the child.
        """
        self._keeps_input = open

    async def aclose(self) -> None:
        """Close the child's input, so that the child exits.

        After ``keep_input(open=True)`` this does nothing, because `shut_down` closes the input.
        """
        if self._keeps_input:
            await trio.lowlevel.checkpoint()
        else:
            await self._stdin.aclose()

    async def drain_stderr(self) -> None:
        """Read the child's standard error until it ends, because unread output would block the child. Keep the last
        lines."""
        stream = self._process.stderr
        assert stream is not None
        # Decode incrementally, because a read may end inside a character.
        text = codecs.getincrementaldecoder("utf-8")("replace")
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for chunk in stream:
                self._record_stderr(text.decode(chunk))
        self._record_stderr(text.decode(b"", final=True))
        self._drained.set()

    def _record_stderr(self, text: str) -> None:
        self._tail.write(text)
        if self._sink is None or not text:
            return
        try:
            self._sink.write(text)
        except Exception as error:
            logger.warning("the server's standard error is no longer copied: %s", error)
            self._sink = None

    async def shut_down(self, grace: float) -> None:
        """End the child process: close its input and wait, then send SIGTERM and wait, then send SIGKILL (2025-11-25
        lifecycle, Shutdown).

        Signals go to the child's whole process group. ``grace`` is the time for each step in seconds. Returns when the
        child was reaped and its group has ended. Run this method under a shield, so that no process is left running. An
        interrupt sends SIGKILL at once.
        """
        process = self._process
        try:
            await self._stdin.aclose()
            with trio.move_on_after(grace):
                await process.wait()
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not self._group.signal(number):
                    break
                with trio.move_on_after(grace):
                    await process.wait()
                    await self._group.wait_gone()
            await process.wait()
            # All processes have ended, so the rest of standard error can be read from the pipe.
            with trio.move_on_after(_OBITUARY_WAIT):
                await self._drained.wait()
                await self._discarded.wait()
        finally:
            self.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _REAPING_WAIT):
                await process.wait()
                for stream in (process.stdout, process.stderr):
                    assert stream is not None
                    await stream.aclose()

    def kill(self) -> None:
        """Send SIGKILL to all remaining processes of the child's process group. Synchronous and idempotent."""
        self._group.kill()

    async def discard_output(self) -> None:
        """Read and discard the child's output until it ends, because a child with a full output pipe can't exit."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            async for _ in self._pipes.receive_stream:
                pass
        self._discarded.set()


async def start_process(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    inherit_env: bool,
    cwd: str | os.PathLike[str] | None,
    stderr: TextSink | None,
    max_message_bytes: int,
) -> ProcessTransport:
    """Start ``command`` as a child process, and return a transport to it.

    The child gets its own process group, and pipes for its three standard streams.

    Raises `ConnectionLost` if the command can't be started.
    """
    inherited = (
        dict(os.environ)
        if inherit_env
        else {name: os.environ[name] for name in INHERITED_ENVIRONMENT if name in os.environ}
    )
    started_at = trio.current_time()
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**inherited, **env},
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        where = f" in {cwd}" if cwd is not None and error.filename == cwd else ""
        path = env.get("PATH", inherited.get("PATH"))
        hint = start_hint(os.fsdecode(cwd if cwd is not None and where else command[0]), cwd, path)
        raise ConnectionLost(
            f"{Path(command[0]).name[:_LONGEST]} could not be started{where}: {error.strerror}{hint}",
            command=shown_command(command),
        ) from error.with_traceback(None)  # avoid a reference cycle through trio's threads
    return ProcessTransport(process, max_message_bytes, stderr, started_at)


_LINES: Final = 20
_LENGTH: Final = 500


class TextSink(Protocol):
    """An object to which text is written. It has a ``write`` method, and needn't have a file descriptor."""

    def write(self, text: str, /) -> object:
        """Write ``text`` to the sink."""


class LastLines:
    """Keeps the last ``limit`` lines of the text that is written to it.

    Lines are cut to 500 characters, without control characters. Blank lines are skipped.

    ``copy`` gets the whole text. `write` raises the exceptions of ``copy`` after keeping the lines.
    """

    def __init__(self, copy: TextSink | None = None, *, limit: int = _LINES) -> None:
        self._copy = copy
        self._limit = limit
        self._whole: deque[str] = deque(maxlen=limit)
        self._rest = ""

    def write(self, text: str, /) -> None:
        """Add ``text``, which may start and end in the middle of a line."""
        *lines, rest = (self._rest + text).split("\n")
        for line in lines[-self._limit :]:
            if line := line.rstrip():
                self._whole.append(clean(line[:_LENGTH]))
        self._rest = rest[:_LENGTH]
        if self._copy is not None:
            self._copy.write(text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of the text that was passed to `write`, oldest first. The newest line may be incomplete."""
        rest = clean(self._rest.rstrip())
        return (*self._whole, rest)[-self._limit :] if rest else tuple(self._whole)


_LONGEST_SHOWN: Final = 300
"""Maximum number of characters of a command, or of a path, in an error message."""


def shown_command(command: Sequence[str | os.PathLike[str]]) -> str:
    """Return the command as you would type it in a shell, shortened, and without unprintable characters."""
    text = shlex.join(os.fsdecode(word) for word in command)
    return clean(text[:_LONGEST_SHOWN]) + ("…" if len(text) > _LONGEST_SHOWN else "")


def start_hint(program: str, cwd: str | os.PathLike[str] | None, search_path: str | None) -> str:
    """Return an explanation why ``program`` couldn't be started, for the end of an error message. It may be empty."""
    if program.startswith("~"):
        return f"; only a shell expands '~': write {os.path.expanduser(program)[:_LONGEST_SHOWN]!r}"
    beside = Path(cwd or ".", program)
    found = shutil.which(program, os.F_OK, search_path) if "/" not in program else str(beside)
    if found is None or not os.path.exists(found):
        if len(words := program.split()) > 1:
            return f"; the program and its arguments must be separate words: {str(words[:20])[:_LONGEST_SHOWN]}"
        return f"; for the file in the working directory write ./{program}" if beside.is_file() else ""
    if not os.path.isfile(found) or not os.access(found, os.X_OK):
        return f"; {found[:_LONGEST_SHOWN]!r} is not an executable file: write its interpreter before the file"
    with open(found, "rb") as file:
        line = file.read(_LONGEST_SHOWN).split(b"\n")[0]
    if not line.startswith(b"#!"):
        return "; the file may need an interpreter before its name, such as python or node"
    interpreter = os.fsdecode(line[2:].strip(b" \t").split(b" ")[0])
    return f"; its first line names the interpreter {interpreter!r}, which could not be started"


_AFTER_TEXT: Final = re.compile(
    rb'^([^{\n]++)(?=\{\s*"(?:jsonrpc|id|result|error)"(?![^\n]*"method")[^\n]*\}\r?\n)', re.MULTILINE
)
"""Pattern of text that precedes an answer on the same line. Other messages on such a line may be copies in the child's
log."""


class EarlyOutput(trio.abc.ReceiveStream):
    """Reads ``source``, the output of a child process that may print other text between its MCP messages.

    The text is also written to ``sink``. If a response follows text on the same line, a line break is inserted before
    it.
    """

    def __init__(self, source: trio.abc.ReceiveStream, sink: Callable[[str], object]) -> None:
        self._source = source
        self._sink = sink
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_text = self._in_message = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for output of the child process, and return it. See `trio.abc.ReceiveStream.receive_some`."""
        data = await self._source.receive_some(max_bytes)
        self._sink(self._text.decode(data))
        if not data:
            return data
        data = _AFTER_TEXT.sub(rb"\1\n", b" " + data if self._in_text else data)
        _, newline, rest = data.rpartition(b"\n")
        self._in_message = b"{" in rest or (self._in_message and not newline)
        self._in_text = bool(rest) and not self._in_message
        return data

    async def aclose(self) -> None:
        """Close ``source``, the stream with the child's output."""
        await self._source.aclose()


async def run_process_tree(
    command: Sequence[str | os.PathLike[str]],
    *,
    grace: float = 2.0,
    task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``command`` like `trio.run_process`. Before returning, end all processes that the command has started.

    The process is started in a new session, so that its process group includes its descendants. If this function is
    cancelled, for example because the request has ended, the group gets SIGTERM, and SIGKILL ``grace`` seconds later.
    If the process ends on its own, its descendants get the same signals, and this function returns after they have
    ended, which takes up to twice ``grace`` seconds. A descendant that starts a new session (a daemon) isn't ended.

    With ``process = await ctx.nursery.start(run_process_tree, command)``, you get the `trio.Process`. Raises the errors
    of `trio.run_process`, and `ValueError` unless ``grace`` is a positive number of seconds.
    """
    check_options("run_process_tree", options, _known_options())
    if not grace > 0:
        raise ValueError(f"grace must be a positive number of seconds, not {grace!r}")
    pipes = [name for name in ("stdin", "stdout", "stderr") if options.get(name) is subprocess.PIPE]
    if pipes and task_status is trio.TASK_STATUS_IGNORED:
        raise ValueError(
            f"{pipes[0]}=PIPE needs `await nursery.start(run_process_tree, ...)`, which returns the process with the "
            "pipe"
        )
    async with open_service_nursery("the process has ended") as nursery:
        tree = _Tree(task_status, grace, nursery)
        try:
            return await trio.run_process(
                command, start_new_session=True, deliver_cancel=tree.terminate, task_status=cast("Any", tree), **options
            )
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * grace):
                await tree.terminate()
            tree.kill()


@cache
def _known_options() -> tuple[str, ...]:
    known = {*signature(trio.run_process).parameters, *signature(subprocess.Popen).parameters}
    return tuple(sorted(known - {"command", "args", "options", "task_status", "deliver_cancel", "start_new_session"}))


class _Tree:
    """Tracks a process and its descendants, to end them together.

    When the process has started, it is passed on to ``status.started``.
    """

    def __init__(self, status: trio.TaskStatus[trio.Process], grace: float, nursery: ServiceNursery) -> None:
        self._status = status
        self._grace = grace
        self._nursery = nursery
        self._group: ProcessGroup | None = None

    def started(self, value: trio.Process) -> None:
        self._group = ProcessGroup(value.pid)
        self._nursery.start_soon(self._terminate_after, value)
        self._status.started(value)

    async def _terminate_after(self, process: trio.Process) -> None:
        """Wait for ``process`` to end, then terminate the rest of its process group.

        The other processes of the group could keep the pipes of ``process`` open.
        """
        await process.wait()
        await self.terminate()

    async def terminate(self, _: trio.Process | None = None) -> None:
        """End all processes of the process group: send SIGTERM, and after the grace period SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._group is None or not self._group.signal(number):
                return
            with trio.move_on_after(self._grace):
                await self._group.wait_gone()

    def kill(self) -> None:
        """Send SIGKILL to all remaining processes of the process group. Don't send signals to the group afterwards.

        The system may reuse the number of the group.
        """
        if self._group is not None:
            self._group.kill()


class ProcessGroup:
    """The process group of a child that was started in a new session. It contains the child and its descendants.

    The group gets SIGKILL at the latest when this object is garbage-collected or our process ends, because an interrupt
    between two lines may have prevented anything earlier.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.kill = weakref.finalize(self, _kill_group, number, os.getpid())
        """Finalizer that sends SIGKILL to the processes that are left in the group. Synchronous and idempotent."""

    def signal(self, number: int) -> bool:
        """Send a signal to the remaining processes of the process group. Return false if no process remains."""
        try:
            os.killpg(self._number, number)
        except (ProcessLookupError, PermissionError):  # on macOS, PermissionError means that only zombies are left
            return False
        return True

    async def wait_gone(self) -> None:
        """Wait until no process of the process group is running."""
        # Poll, because this process can't wait for processes that aren't its children.
        while self.signal(0) and not _all_exited(self._number):  # noqa: ASYNC110 - there is no event to wait for
            await trio.sleep(0.01)


def _kill_group(group: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process must not send signals to its parent's group
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _all_exited(group: int) -> bool:
    """Return whether all remaining processes of a process group are zombies.

    The init process should reap them, but in many containers it doesn't. Without /proc, return false.
    """
    found = False
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group, *_ = path.read_bytes().rpartition(b") ")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(its_group) == group:
            if state != b"Z":
                return False
            found = True
    return found
