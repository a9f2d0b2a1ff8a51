"""Servers on stdio: `open_stdio` starts a child process and connects to it; a Command is such a server as data.

`watch_exit` detects the exit of a server whose output another process holds open.
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
    """Start the server ``command`` as a child process, connect to it over stdio, and own both.

    The child runs in the folder ``cwd``, and gets ``env`` on top of a short list of harmless variables (PATH, HOME,
    LANG, …), or of all of ours with ``inherit_env``. The child's standard error is always read; ``stderr`` gets a
    copy, and the last lines are part of `ConnectionLost`. If the connection can't be opened, the error also has the
    command and the last lines of the child's output that are no messages. ``options`` are those of `ClientSettings`.

    However left, the block closes the child's input and waits up to ``close_grace`` seconds for the child to exit, then
    sends SIGTERM to its whole process group and waits once more, then SIGKILL. The child is reaped, and no process of
    its group runs on. An interrupt (Ctrl-C) during the wait sends SIGKILL at once. Exceptions of the body leave
    unchanged, never as a group.

    When the child has exited, but a process started by the child holds its output open, a ping is sent after 5 s of
    silence, and the connection is lost after 5 s more without any message. A server that has become a daemon and goes
    on talking is not lost.

    Raises `ConnectionLost` when the command cannot be started or the server exits, `BadTarget` for a command that no
    system could start, an empty list or a word with NUL for example, and otherwise as `open_client`.
    """
    child = Command(command, env=env or {}, inherit_env=inherit_env, cwd=cwd, stderr=stderr, close_grace=close_grace)
    return child.open(**options)


logger = logging.getLogger("trio_mcp")


class NotReady(trio.TooSlowError):
    """The time to connect is over. ``lost`` has the last lines of the child."""

    def __init__(self, lost: ConnectionLost) -> None:
        super().__init__(str(lost))
        self.lost = lost


_LEGACY_COMMANDS: Final = LegacyServers()
"""The commands whose last child turned out to be a legacy server."""


def _command_arguments(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(command, str) or not command:
        raise BadTarget('a command is a list of words, ["python", "server.py"] for example, not one string')
    words = tuple(os.fsdecode(word) for word in command)
    if not words[0]:
        raise BadTarget("the first word of a command is the name of a program, not an empty text")
    for word in words:
        _check_passable("a word of a command", word)
    return words


def _check_environment(_: Any, __: Any, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        _check_passable("the name of a variable", name)
        _check_passable(f"the variable {name}", value)
        if not name or "=" in name:
            raise BadTarget(f"the name of a variable is not empty and has no '=': {name!r}")


def _check_directory(_: Any, __: Any, cwd: str | os.PathLike[str] | None) -> None:
    if cwd is not None:
        _check_passable("a directory", os.fsdecode(cwd))


def _check_passable(what: str, text: str) -> None:
    """Raise `BadTarget` for a text that cannot be passed to a program."""
    try:
        if b"\0" not in os.fsencode(text):
            return
    except UnicodeEncodeError:
        raise BadTarget(f"{what} has a character that no program can be given: {text[:300]!r}") from None
    raise BadTarget(f"{what} has no NUL in it: {text[:300]!r}")


@frozen
class Command:
    """A server to start as a child process. `open_stdio` documents the fields. Raises `BadTarget` for a command that no
    system could start."""

    words: Sequence[str | os.PathLike[str]] = attrs.field(converter=_command_arguments)
    """The program and its arguments."""
    env: Mapping[str, str] = attrs.field(factory=dict[str, str], validator=_check_environment, kw_only=True)
    """Variables on top of the inherited variables."""
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    """True: the child inherits all variables of this process; else a short list of harmless ones."""
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, validator=_check_directory, kw_only=True)
    """Working directory of the child; `None`: the present one."""
    stderr: TextSink | None = attrs.field(default=None, kw_only=True)
    """Gets a copy of the child's standard error."""
    close_grace: float = attrs.field(default=2.0, kw_only=True)
    """Seconds that the child has to exit by itself, and once more after SIGTERM."""
    revision: str | None = attrs.field(default=None, validator=check_revision, kw_only=True)
    """The revision to speak, whatever the options of `open` say; `None`: any."""
    prior: JSONObject | None = attrs.field(default=None, validator=check_prior, kw_only=True, repr=False)
    """What `Client.discovery` gave of this server earlier: see `ClientSettings.prior`."""

    @property
    def _identity(self) -> Hashable:
        """The fields that say which server the command starts."""
        cwd = None if self.cwd is None else os.fspath(self.cwd)
        return self.words, cwd, self.inherit_env, frozenset(self.env.items())

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def open(self, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
        """Start the child and connect to it: see `open_stdio`."""
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
                raise  # it is the body's own
            logger.info("%s ended when asked for its era, and is restarted: %s", self.words[0], error.reason)
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
                        transport.keep_input(open=False)  # an end before the body asks the child to exit
                        transport.stop_recording_output()
                        opened = True
                        try:
                            yield client
                        finally:
                            transport.keep_input(open=True)
                except BaseException as error:
                    if not opened and not isinstance(error, ConnectionLost):
                        self._explain(error, transport)  # before the child is ended, which may write more
                    raise
        except ConnectionLost as error:
            if not opened and transport is not None:
                self._explain(error, transport)
            raise

    def _explain(self, error: BaseException, transport: ProcessTransport) -> None:
        """Add the last lines of the child and the command to the ``error`` of opening."""
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
        elif lost is not error:  # the answer of the server, whose text stays as it is
            error.add_note(lost.details.removeprefix("; "))


@asynccontextmanager
@trio.lowlevel.enable_ki_protection  # no interrupt between the start of a process and those who end it
async def open_process(command: Command, limits: Limits = DEFAULT_LIMITS) -> AsyncGenerator[ProcessTransport]:
    """Open the bare messages of a child process, which is started and ended as `open_stdio` says.

    Raises `ConnectionLost` when the command cannot be started.
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
                # Two waits of the ladder and a moment more; SIGKILL cannot be refused.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * command.close_grace + 5):
                    await transport.shut_down(command.close_grace)
            finally:
                transport.kill()


_SILENCE: Final = 5.0
"""Seconds of silence after which the server is asked."""
_ANSWER_WITHIN: Final = 5.0


@trio.lowlevel.enable_ki_protection  # an interrupt is for the task that uses the client
async def watch_exit(transport: ProcessTransport, client: Client) -> None:
    """Lose the connection when the child has exited and no other process speaks in its place.

    The output stays open while a process that the child has started holds it: a helper, which never speaks, or the
    server itself, which has become a daemon and goes on. After `_SILENCE` seconds of silence a ping decides, or the
    request that replaces ping in the revision: any message received is a sign of life. From then on the server is asked
    again only while a call waits.
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
        return  # the loss was noticed in another way
