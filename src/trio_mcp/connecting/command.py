"""Command: a server to start as a child process."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

import attrs
import trio

from ..client.client import Client
from ..client.opening import LegacyServers, LostInProbe, open_over
from ..client.options import ClientOptions, ClientSettings
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..concurrency.under_trio import check_opened_under_trio
from ..runtime.limits import DEFAULT_LIMITS, Limits
from ..transports.last_lines import TextSink
from ..transports.process import ProcessChannel, start_process
from .bad_target import BadTarget
from .exits import notice_exit

logger = logging.getLogger("trio_mcp")


_LEGACY: Final = LegacyServers()
"""The commands whose last child turned out to be a legacy server."""


def _words(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
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


@attrs.frozen
class Command:
    """A server to start as a child process. `open_stdio` documents the fields. Raises `BadTarget` for a command that no
    system could start."""

    words: Sequence[str | os.PathLike[str]] = attrs.field(converter=_words)
    env: Mapping[str, str] = attrs.field(factory=dict[str, str], validator=_check_environment, kw_only=True)
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, validator=_check_directory, kw_only=True)
    stderr: TextSink | None = attrs.field(default=None, kw_only=True)
    close_grace: float = attrs.field(default=2.0, kw_only=True)

    @property
    def identity(self) -> Hashable:
        """The fields that say which server the command starts."""
        cwd = None if self.cwd is None else os.fspath(self.cwd)
        return self.words, cwd, self.inherit_env, frozenset(self.env.items())

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def open(self, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
        """Start the child and connect to it: see `open_stdio`."""
        check_opened_under_trio("open_stdio")
        begun, settings = trio.current_time(), ClientSettings(**options)
        legacy_first = settings.era == "auto" and _LEGACY.holds(self.identity)
        opened = False
        try:
            async with self._open(settings, begun, legacy_first) as client:
                opened = True
                yield client
            return
        except LostInProbe as error:
            if opened:
                raise  # it is the body's own
            logger.info("%s ended when asked for its era, and is restarted: %s", self.words[0], error.reason)
        async with self._open(settings, begun, not legacy_first) as client:
            yield client

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def _open(self, settings: ClientSettings, begun: float, legacy_first: bool) -> AsyncGenerator[Client]:
        async with open_process(self, settings.limits) as channel:
            channel.keep_input_open()
            exited = partial(notice_exit, channel)
            async with open_over(channel, settings, begun, exited, legacy_first=legacy_first) as client:
                if settings.era == "auto":
                    _LEGACY.note(self.identity, is_legacy=client.revision.handshake)
                channel.let_input_close()  # a connection that ends before the body asks the child to exit
                try:
                    yield client
                finally:
                    channel.keep_input_open()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection  # no interrupt between the start of a process and those who end it
async def open_process(command: Command, limits: Limits = DEFAULT_LIMITS) -> AsyncGenerator[ProcessChannel]:
    """Open the bare messages of a child process, which is started and ended as `open_stdio` says.

    Raises `ConnectionLost` when the command cannot be started.
    """
    async with open_service_nursery("the connection was closed") as nursery:
        channel = await start_process(
            command.words,
            env=command.env,
            inherit_env=command.inherit_env,
            cwd=command.cwd,
            stderr=command.stderr,
            max_message_bytes=limits.max_message_bytes,
        )
        try:
            nursery.start_protected(channel.drain_stderr)
            yield channel
        finally:
            try:
                nursery.start_protected(channel.discard_output)
                # Two waits of the ladder and a moment more; SIGKILL cannot be refused.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * command.close_grace + 5):
                    await channel.end(command.close_grace)
            finally:
                channel.kill()
