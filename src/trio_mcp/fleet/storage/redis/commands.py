"""Commands and scripts: which may be sent on a connection that all callers share, to which node of a cluster, and which
errors say that a script has changed nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final, TypeAlias

import attrs

from ....classes import frozen

Value: TypeAlias = bytes | str | int
"""A word of a command. Text is sent as UTF-8."""

_FORBIDDEN: Final = frozenset(
    {
        # These block the connection, as XREAD and XREADGROUP do with BLOCK,
        *("BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "WAIT", "WAITAOF"),
        # have it bring something else than answers,
        *("MONITOR", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC"),
        "UNSUBSCRIBE",
        # or leave a state on it, for the next caller.
        *("ASKING", "AUTH", "CLIENT", "DISCARD", "EXEC", "HELLO", "MULTI", "QUIT", "READONLY", "READWRITE", "RESET"),
        *("SELECT", "UNWATCH", "WATCH"),
    }
)
_MAY_BLOCK: Final = frozenset({"XREAD", "XREADGROUP"})

_SCRIPTS: Final = frozenset({"EVAL", "EVALSHA", "FCALL"})
_KEY_OF_SCRIPT: Final = 3
"""Place of the first key in a command that runs a script, behind the number of keys."""

_REFUSED: Final = frozenset(
    {
        *("ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH"),
        *("NOREPLICAS", "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN"),
    }
)
"""Codes of the errors by which Redis refuses a script before the first change: memory, disk and role are looked at with
the first command that writes, and no more once the script has changed something."""
_NOT_COMPILED: Final = "Error compiling script"
_FORBIDDEN_WITHIN: Final = "in script"


@frozen
class Script:
    """A script in Lua, which Redis runs as a whole, without other commands in between. The changes of a script before
    an error stay, so good scripts tell their findings by the result."""

    name: str
    """The name, for people."""
    text: str = attrs.field(repr=False)


@cache
def digest(text: str) -> str:
    """Return the name by which Redis knows the script ``text``."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def check_argument_types(words: Iterable[object]) -> None:
    """Raise `TypeError` where there is something else than `Value`: coredis would end the connection."""
    for word in words:
        if not isinstance(word, (bytes, str, int)):
            raise TypeError(f"the words of a command are bytes, text and whole numbers, not {type(word).__name__}")


def check(command: Sequence[Value]) -> None:
    """Raise `ValueError` for a command that may not be sent on a connection that all callers share, and `TypeError` as
    `check_argument_types` does."""
    check_argument_types(command)
    if (name := _name(command)) in _FORBIDDEN or (name in _MAY_BLOCK and "BLOCK" in map(_upper, command)):
        raise ValueError(f"{name} blocks the connection that all callers share, or changes its state")


def runs_script(command: Sequence[Value]) -> bool:
    """Return whether the command may have changed something before its error."""
    return _name(command) in _SCRIPTS


def key_of(command: Sequence[Value]) -> bytes | None:
    """Return the word that says to which node of a cluster the command goes: the second one, or the first key of a
    script; `None`: to any."""
    place = 1
    if runs_script(command):
        place = _KEY_OF_SCRIPT
        if not int(command[place - 1]):
            return None
    if len(command) <= place:
        return None
    word = command[place]
    return word if isinstance(word, bytes) else str(word).encode()


def is_refusal(error: str) -> bool:
    """Return whether an error, by its words, says that Redis has refused a script before its first change."""
    code = error.partition(" ")[0]
    return code in _REFUSED or error.startswith(_NOT_COMPILED) or (code == "NOPERM" and _FORBIDDEN_WITHIN not in error)


def _name(command: Sequence[Value]) -> str:
    return _upper(command[0])


def _upper(word: Value) -> str:
    return (word.decode(errors="replace") if isinstance(word, bytes) else str(word)).upper()
