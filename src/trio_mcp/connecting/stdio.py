"""Servers over stdio: `open_stdio` starts a child process and connects to it. `Command` describes such a server as
data.

`watch_exit` detects that a server has exited although another process keeps its output open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Unpack

import attrs
import trio

from ..classes import frozen
from ..client.client import Client
from ..client.opening import LegacyServers, LostInProbe, Opening
from ..client.options import ClientOptions, check_prior, check_revision, speaking
from ..client.timeouts import has_answered, in_progress
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only, check_keywords
from ..concurrency.nurseries import open_service_nursery
from ..concurrency.time_limits import call_limits
from ..jsonrpc.errors import ProtocolViolation
from ..protocol.fields import JSONObject
from ..runtime.limits import DEFAULT_LIMITS, Limits
from ..runtime.transport import ConnectionLost
from ..transports.process import ProcessTransport, TextSink, shown_command, start_process
from .bad_target import BadTarget


@async_with_only("client")
def open_stdio(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    **options: Unpack[ClientOptions],
) -> AbstractAsyncContextManager[Client]:
    """Start a server as a child process, and connect to it over stdio. Yields a `Client`.

    The client is closed at the end of the block.

    At the end of the block, the child is ended, however the block is left. The client closes the child's input, and
    waits up to ``close_grace`` seconds for the child to exit. Then it sends SIGTERM to the child's whole process group
    and waits again, then SIGKILL. After that, no process of the group is left. Ctrl-C during the wait sends SIGKILL at
    once. Exceptions of the block propagate unchanged, and not as a group.

    The child's standard error is always read, and its last lines are included in `ConnectionLost`. If the connection
    can't be opened, the error also contains the command, and the last lines of the child's output that aren't messages.

    If the child has exited, but a process that it started keeps its output open, the client sends a ping after 5 s of
    silence. After 5 s more without any message, the connection is lost. A server that has become a daemon and still
    sends messages isn't lost.

    Args:
        command: The program and its arguments, as a list.
        env: Environment variables for the child, in addition to a short list of harmless ones (PATH, HOME, LANG, …).
        inherit_env: Whether the child gets all environment variables of this process.
        cwd: The working directory of the child.
        stderr: Gets a copy of the child's standard error.
        close_grace: Seconds to wait until the child exits, see above.
        options: See `ClientSettings`.

    Raises:
        ConnectionLost: The command can't be started, or the server exits.
        BadTarget: The command is invalid on any system, for example because it is empty or contains a NUL.
        trio.TooSlowError: Connecting takes longer than ``connect_timeout``.
        PeerError: The server refuses the connection with an error.
        ProtocolViolation: Client and server have no revision in common.
    """
    child = Command(command, env=env or {}, inherit_env=inherit_env, cwd=cwd, stderr=stderr, close_grace=close_grace)
    return child.open(**options)


logger = logging.getLogger("trio_mcp")


class NotReady(trio.TooSlowError):
    """Raised if a child process doesn't reply before the connect timeout expires.

    ``lost`` contains the last lines of the child process.
    """

    def __init__(self, lost: ConnectionLost) -> None:
        super().__init__(str(lost))
        self.lost = lost


_LEGACY_COMMANDS: Final = LegacyServers()
"""The commands whose last child process was found to be a legacy server."""


def _command_arguments(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(command, str) or not command:
        raise BadTarget('a command must be a list, ["python", "server.py"] for example, not a string')
    words = tuple(os.fsdecode(word) for word in command)
    if not words[0]:
        raise BadTarget("the first item of a command must be the name of a program, not an empty string")
    for word in words:
        _check_passable("an item of the command", word)
    return words


def _check_environment(_: Any, __: Any, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        _check_passable("the name of an environment variable", name)
        _check_passable(f"the variable {name}", value)
        if not name or "=" in name:
            raise BadTarget(f"the name of an environment variable must not be empty or contain '=': {name!r}")


def _check_directory(_: Any, __: Any, cwd: str | os.PathLike[str] | None) -> None:
    if cwd is not None:
        _check_passable("a directory", os.fsdecode(cwd))


def _check_passable(what: str, text: str) -> None:
    """Raise `BadTarget` if a string contains characters that arguments and environment variables can't have."""
    try:
        if b"\0" not in os.fsencode(text):
            return
    except UnicodeEncodeError:
        raise BadTarget(f"{what} has a character that can't be passed to a program: {text[:300]!r}") from None
    raise BadTarget(f"{what} must not contain a NUL: {text[:300]!r}")


@frozen
class Command:
    """A command that starts a server as a child process. `open_stdio` documents the fields.

    Raises `BadTarget` if no system could run the command.
    """

    words: Sequence[str | os.PathLike[str]] = attrs.field(converter=_command_arguments)
    """The program and its arguments, as a list."""
    env: Mapping[str, str] = attrs.field(factory=dict[str, str], validator=_check_environment, kw_only=True)
    """Environment variables for the child process, in addition to the inherited ones."""
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    """True if the child process inherits all variables of this process, false if it only inherits a short list of
    harmless ones."""
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, validator=_check_directory, kw_only=True)
    """Working directory of the child process; `None` for the current directory."""
    stderr: TextSink | None = attrs.field(default=None, kw_only=True)
    """The file or other text sink that gets a copy of the child's standard error."""
    close_grace: float = attrs.field(default=2.0, kw_only=True)
    """Seconds to wait until the child process exits by itself, and again after SIGTERM."""
    revision: str | None = attrs.field(default=None, validator=check_revision, kw_only=True)
    """The protocol revision to use, whatever the options of `open` are; `None` for any revision."""
    prior: JSONObject | None = attrs.field(default=None, validator=check_prior, kw_only=True, repr=False)
    """A saved `Client.discovery` of this server: see `ClientSettings.prior`."""

    @property
    def _identity(self) -> Hashable:
        """A key for the server that the command starts. Equal commands have equal keys."""
        cwd = None if self.cwd is None else os.fspath(self.cwd)
        return self.words, cwd, self.inherit_env, frozenset(self.env.items())

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def open(self, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
        """Start the child process, and connect to it: see `open_stdio`."""
        check_keywords(Command.open, options)
        joined = "\0".join(map(os.fsdecode, self.words))
        opening = Opening.under_trio("open_stdio", speaking(self.revision, options, self.prior), joined)
        legacy_first = opening.settings.era == "auto" and _LEGACY_COMMANDS.is_known(self._identity)
        opened = False
        try:
            async with self._open(opening, legacy_first) as client:
                opened = True
                yield client
            return
        except LostInProbe as error:
            if opened:
                raise  # the error comes from the caller's block, so raise it unchanged
            logger.info("%s exited on server/discover, and is restarted: %s", self.words[0], error.reason)
        async with self._open(opening, not legacy_first) as client:
            yield client

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def _open(self, opening: Opening, legacy_first: bool) -> AsyncGenerator[Client]:
        opened, transport = False, None
        try:
            async with open_process(self, opening.settings.limits) as transport:
                transport.keep_input(open=True)
                exited = partial(watch_exit, transport)
                try:
                    async with opening.open_over(transport, exited, legacy_first=legacy_first) as client:
                        if opening.settings.era == "auto":
                            _LEGACY_COMMANDS.record(self._identity, is_legacy=client.revision.handshake)
                        # If the client is closed inside the block, close the child's input, so that the child exits.
                        transport.keep_input(open=False)
                        transport.stop_recording_output()
                        opened = True
                        try:
                            yield client
                        finally:
                            transport.keep_input(open=True)
                except BaseException as error:
                    if not opened and not isinstance(error, ConnectionLost):
                        # Explain the error now, while the child still runs and may write to standard error.
                        self._explain(error, transport)
                    raise
        except ConnectionLost as error:
            if not opened and transport is not None:
                self._explain(error, transport)
            raise

    def _explain(self, error: BaseException, transport: ProcessTransport) -> None:
        """Add the command and the child's last lines to ``error``, which was raised while the client was opened."""
        lost = error if isinstance(error, ConnectionLost) else ConnectionLost(str(error))
        lost.stderr, lost.stdout = transport.last_lines
        lost.command = shown_command(self.words)
        if isinstance(error, trio.TooSlowError):
            raise NotReady(lost) from None
        if isinstance(error, trio.Cancelled):
            for limit in call_limits():
                limit.hint += lost.details
        elif isinstance(error, ProtocolViolation):
            error.args = (f"{error}{lost.details}",)
        elif lost is not error:  # the server has replied with an error: keep its message, and add a note
            error.add_note(lost.details.removeprefix("; "))


@asynccontextmanager
@trio.lowlevel.enable_ki_protection  # prevent a KeyboardInterrupt between starting the process and supervising it
async def open_process(command: Command, limits: Limits = DEFAULT_LIMITS) -> AsyncGenerator[ProcessTransport]:
    """Start a child process, and open a transport to it. `open_stdio` describes how the process starts and ends.

    Raises `ConnectionLost` if the command can't be started.
    """
    async with open_service_nursery("the connection was closed") as nursery:
        transport = await start_process(
            command.words,
            env=command.env,
            inherit_env=command.inherit_env,
            cwd=command.cwd,
            stderr=command.stderr,
            max_message_bytes=limits.max_message_bytes,
        )
        try:
            nursery.start_protected(transport.drain_stderr)
            yield transport
        finally:
            try:
                nursery.start_protected(transport.discard_output)
                # Allow two grace periods, before SIGTERM and before SIGKILL, plus a moment for SIGKILL to take effect.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * command.close_grace + 5):
                    await transport.shut_down(command.close_grace)
            finally:
                transport.kill()


_SILENCE: Final = 5.0
"""If the server sends no message for this many seconds, the client sends a ping."""
_ANSWER_WITHIN: Final = 5.0


@trio.lowlevel.enable_ki_protection  # KeyboardInterrupt must reach only the task that uses the client
async def watch_exit(transport: ProcessTransport, client: Client) -> None:
    """Close the connection when the child process has exited. If a process that the child has started still answers
    pings, keep the connection open.

    The output stays open while a process that the child has started keeps it open: a helper, which never writes
    messages, or the server itself, which has become a daemon. After `_SILENCE` seconds of silence a ping decides, or
    the request that replaces ping in the revision: any message received is a sign of life. Afterwards the server gets
    further pings only while a call waits.
    """
    await transport.exited()
    alive = False
    try:
        while True:
            received = transport.received
            await trio.sleep(_SILENCE)
            if transport.received != received or (alive and not in_progress(client._connection)):
                continue
            alive = await has_answered(client.ping, _ANSWER_WITHIN) or transport.received != received
            if not alive:
                client._connection.lose(await transport.exit_error("the server is gone"))
                return
    except ConnectionLost:
        return  # another task has already noticed the lost connection
