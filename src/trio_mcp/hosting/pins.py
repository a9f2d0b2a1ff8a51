"""ToolPins: the descriptions of tools that a person has approved, against servers that change them later (rug pulls).

A pin is a hash of what a server says of a tool. The file with the pins is written as a whole, under a lock.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import trio

from ..jsonrpc.errors import clean
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.tools import Tool
from .config_files import ConfigError, names_given_twice, read_json
from .descriptions import HeldTool

logger = logging.getLogger("trio_mcp")

PinPolicy: TypeAlias = Literal["hold", "warn", "refuse"]
"""What happens to a new or changed tool: see `ToolPins`."""
PinSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]

_POLICIES: Final = ("hold", "warn", "refuse")
_MODE: Final = 0o600
_POLL_INTERVAL: Final = 1.0
"""Seconds between two looks at the file."""
_MAX_CHARACTERS: Final = 16 * 1024 * 1024
_MOST_NAMES: Final = 5
"""Tools that a line of the log names."""
_OUTCOMES: Final = {
    "hold": "are held until they are approved",
    "refuse": "are held until they are approved, with all its other tools",
    "warn": "are offered, although they are not approved",
}


def pinned_fields(tool: Tool) -> JSONObject:
    """Return what is pinned of a tool, as its server gave it: its name, title, description, schemas and annotations.
    Models are shown the first ones, and hosts decide by annotations whether they ask their user. Icons, ``_meta`` and
    ``execution`` aren't pinned."""
    annotations = None if tool.annotations is None else unstructure(tool.annotations, LATEST_MODERN)
    fields = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": annotations,
    }
    return {name: value for name, value in fields.items() if value is not None}


def tool_hash(tool: Tool) -> str:
    """Return the hash of a tool, ``sha256:`` and 64 digits: over the canonical JSON (sorted keys, no spaces) of its
    name, title, description, input and output schema, and annotations."""
    return _hash(pinned_fields(tool))


def _hash_of_any(tool: Tool) -> str:
    """Return the hash of a tool; an empty text, which is no pin, for one that can't be written as JSON."""
    try:
        return tool_hash(tool)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return ""


def _hash(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(text.encode()).hexdigest()}"


class ToolPins:
    """The approved tools of a group, and what happens to all others.

    ``source`` is the path of a file, which `Group.approve_tools` and ``trio-mcp pins approve`` write, or a mapping
    ``{"member": {"tool": hash}}`` with hashes of `tool_hash`. A file that doesn't exist has no pins. A group looks at
    the file each second; as long as it can't be read, the pins before stay.

    ``policy``: with ``"hold"``, a new or changed tool isn't offered before it is approved. ``"refuse"``, in addition,
    offers no tool of a member that has such a tool. ``"warn"`` offers all, and logs a warning. Raises `ValueError` for
    another policy, and `ConfigError` for a mapping of another form.
    """

    def __init__(self, source: PinSource, policy: PinPolicy = "hold") -> None:
        if policy not in _POLICIES:
            raise ValueError(f'policy must be "hold", "warn" or "refuse", not {policy!r}')
        self.policy: Final = policy
        self.path: Final = None if isinstance(source, Mapping) else Path(source).absolute()
        """The file; `None` for a mapping."""
        self._pins = _checked(source, "pin=") if isinstance(source, Mapping) else {}
        self._stamp: tuple[int, ...] | None = None
        """What tells the file that was read from a later one; `None` where there was none."""
        self._loading = threading.Lock()
        self._logged: dict[str, frozenset[str]] = {}
        """The hashes of all tools of each member with held ones, as they were when the log was written."""

    def held_of(self, member: str, tools: Iterable[Tool], named: Callable[[str], str]) -> list[HeldTool]:
        """Return which ``tools`` of a member are held; ``named`` returns the name in the catalogue. A change of this is
        logged."""
        tools, pins = tuple(tools), self._pins.get(member, {})
        hashes = [_hash_of_any(tool) for tool in tools]
        held = list[HeldTool]()
        for tool, digest in zip(tools, hashes, strict=True):
            pinned, fields = pins.get(tool.name, (None, None))
            if pinned is None or pinned != digest:
                held.append(HeldTool(named(tool.name), member, tool, "changed" if pinned else "new", fields))
        self._log(member, held, frozenset(hashes) if held else frozenset())
        if self.policy == "warn":
            return []
        if held and self.policy == "refuse":
            found = {id(each.item) for each in held}
            held += [HeldTool(named(each.name), member, each, "refused") for each in tools if id(each) not in found]
        return held

    def _log(self, member: str, held: Sequence[HeldTool], hashes: frozenset[str]) -> None:
        if self._logged.get(member, frozenset()) == hashes:
            return
        self._logged[member] = hashes
        if held:
            names = ", ".join(f"{clean(each.item.name[:100])} ({each.reason})" for each in held[:_MOST_NAMES])
            more = f" and {len(held) - _MOST_NAMES} more" if len(held) > _MOST_NAMES else ""
            logger.warning("tools of member %s %s: %s%s", member, _OUTCOMES[self.policy], names, more)

    def load(self) -> bool:
        """Read the file, if it has changed, and return whether it has. Blocks. Raises `ConfigError`."""
        if self.path is None:
            return False
        with self._loading:  # `follow` and `approve` read in threads: none may return before the other has the pins
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return False
            self._stamp = stamp  # one line in the log for a file that can't be read
            self._pins = _read(self.path)
            return True

    async def follow(self, changed: Callable[[], object]) -> None:
        """Call ``changed`` after each change of the file, until cancelled."""
        while self.path is not None:
            await trio.sleep(_POLL_INTERVAL)
            try:
                if await trio.to_thread.run_sync(self.load, abandon_on_cancel=True):
                    changed()
            except ConfigError as error:
                logger.warning("the pins before stay in use: %s", error)

    async def approve(self, tools: Iterable[HeldTool]) -> None:
        """Approve ``tools`` as they are held, whatever their server says by now. The file is replaced as a whole, with
        the pins that others have put there meanwhile. Raises `ConfigError` where it can't be read or written."""
        new = [(each.member, pinned_fields(each.item)) for each in tools]
        if self.path is None:
            self._pins = _with_pins(self._pins, new)
        else:
            await trio.to_thread.run_sync(_approve, self.path, new)
            await trio.to_thread.run_sync(self.load)


_Pins: TypeAlias = dict[str, dict[str, tuple[str, JSONObject | None]]]
"""The hash of each tool of each member, and the fields that have this hash, if known."""


def _with_pins(pins: _Pins, new: Iterable[tuple[str, JSONObject]]) -> _Pins:
    pins = {member: {**tools} for member, tools in pins.items()}
    for member, fields in new:
        pins.setdefault(member, {})[fields["name"]] = _hash(fields), fields
    return pins


def _checked(data: Any, where: str) -> _Pins:
    """Return the pins in a mapping or in a file. Raises `ConfigError`."""
    pins: _Pins = {}
    if names_given_twice(data):
        raise ConfigError(f"{where}: {next(iter(names_given_twice(data)))!r} is there twice")
    for member, tools in _object(data, where, "an object of members").items():
        if names_given_twice(tools):
            raise ConfigError(f"{where}: {member}: {next(iter(names_given_twice(tools)))!r} is there twice")
        entries = pins[member] = {}
        for name, pin in _object(tools, f"{where}: {member}", "an object of tools").items():
            place = f"{where}: {member}: {name}"
            entry = {"hash": pin} if isinstance(pin, str) else _object(pin, place, "a hash, or an object with one")
            digest: Any = entry.get("hash")
            fields: Any = entry.get("tool")
            if not isinstance(digest, str) or not digest.startswith("sha256:"):
                raise ConfigError(f'{place}: hash must be like "sha256:…", not {digest!r:.100}')
            if fields is not None and _hash(_object(fields, f"{place}: tool", "an object")) != digest:
                raise ConfigError(
                    f"{place}: the hash isn't that of its tool; remove this pin and approve the tool again"
                )
            entries[name] = digest, fields
    return pins


def _object(value: Any, where: str, wanted: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be {wanted}, not {type(value).__name__}")
    return cast("Mapping[str, Any]", value)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.errno or 0,)  # `_read` says what is wrong
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> _Pins:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would have no end
            raise ConfigError(f"{path} is no regular file")
        return _checked(read_json(path), str(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        words = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{path} is no JSON: {words}") from None


def _approve(path: Path, new: Iterable[tuple[str, JSONObject]]) -> None:
    """Add pins to a file. No link is followed: the file would be another one."""
    import fcntl  # late: not on every platform

    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the file itself is replaced, so that its lock would hold nobody
            mode = _MODE
            with suppress(FileNotFoundError):
                status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(f"{path} is a symbolic link or no regular file, and is not written to")
                mode = stat.S_IMODE(status.st_mode)
            pins = _with_pins(_read(path), new)
            text = json.dumps(_file_of(pins), indent=2) + "\n"
            if len(text) > _MAX_CHARACTERS:
                raise ConfigError(f"{path} would have more than {_MAX_CHARACTERS:,} characters: approve fewer tools")
            _replace(folder, path.name, text.encode(), mode)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _file_of(pins: _Pins) -> JSONObject:
    def entry(digest: str, fields: JSONObject | None) -> Any:
        return {"hash": digest, "tool": fields} if fields else digest

    return {member: {name: entry(*pin) for name, pin in tools.items()} for member, tools in pins.items()}


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    beginning = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(beginning, flags, _MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(beginning, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(beginning, dir_fd=folder)
        raise
    os.fsync(folder)
