"""ToolPins: the tool descriptions that a person has approved. They protect against servers that change descriptions
later (rug pulls).

A pin is a hash of a tool's description. The file with the pins is replaced atomically, under a lock.
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
from .config_files import ConfigError, names_given_twice, read_json, unreadable
from .descriptions import HeldTool

logger = logging.getLogger("trio_mcp")

PinPolicy: TypeAlias = Literal["hold", "warn", "refuse"]
"""The policies for new and changed tools: see `ToolPins`."""
PinSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]

_MODE: Final = 0o600
_POLL_INTERVAL: Final = 1.0
"""The number of seconds between two checks of the file with the pins."""
_MAX_CHARACTERS: Final = 16 * 1024 * 1024
_MOST_NAMES: Final = 5
"""The maximum number of tools that one line of the log names."""
_OUTCOMES: Final = {
    "hold": "are held until they are approved",
    "refuse": "are held until they are approved, with all its other tools",
    "warn": "are offered, although they are not approved",
}


def pinned_fields(tool: Tool) -> JSONObject:
    """Return the fields of ``tool`` that need a new approval when the server changes them. The values are as the server
    sent them.

    These are name, title, description, schemas and annotations.

    Models see all of these except annotations, by which hosts decide whether to ask their user. Icons, ``_meta`` and
    ``execution`` aren't pinned.
    """
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
    """Return the hash of a tool, which identifies its approved version: ``sha256:`` and 64 digits.

    It covers the canonical JSON (sorted keys, no spaces) of the tool's name, title, description, input and output
    schema, and annotations.
    """
    return _hash(pinned_fields(tool))


def _hash_of_any(tool: Tool) -> str:
    """Return the hash of a tool, or an empty string if the tool can't be written as JSON.

    An empty string matches no approval.
    """
    try:
        return tool_hash(tool)
    except (ValueError, RecursionError):  # the tool's JSON has a number with thousands of digits, or is nested deeply
        return ""


def _hash(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(text.encode()).hexdigest()}"


class ToolPins:
    """The tools of a group that a person has approved (pins), and the policy for all other tools.

    Args:
        source: The path of a file, which `Group.approve_tools` and ``trio-mcp pins approve`` write, or a mapping
            ``{"member": {"tool": hash}}`` with hashes of `tool_hash`. A file that doesn't exist has no pins. The group
            checks the file each second; while it can't be read, the previous pins are used.
        policy: ``"hold"`` doesn't offer a new or changed tool until it is approved. ``"refuse"`` offers no tool of a
            member that has such a tool. ``"warn"`` offers all tools, and logs a warning.

    Raises:
        ValueError: The policy is unknown.
        ConfigError: The mapping is invalid.
    """

    def __init__(self, source: PinSource, policy: PinPolicy = "hold") -> None:
        if policy not in _OUTCOMES:
            raise ValueError(f'policy must be "hold", "warn" or "refuse", not {policy!r}')
        self.policy: Final = policy
        self.path: Final = None if isinstance(source, Mapping) else Path(source).absolute()
        """The path of the file with the pins; `None` if the pins are in a mapping."""
        self._pins = _checked(source, "pin=") if isinstance(source, Mapping) else {}
        self._stamp: tuple[int, ...] | None = None
        """A value that identifies the version of the file that was read; `None` if there was no file."""
        self._loading = threading.Lock()
        self._logged: dict[str, frozenset[str]] = {}
        """For each member with held tools, the hashes of all its tools when the held tools were last logged."""

    def held_of(self, member: str, tools: Iterable[Tool], named: Callable[[str], str]) -> list[HeldTool]:
        """Return the tools in ``tools`` that a person must approve before the group offers them. They belong to the
        server ``member``.

        Tools that have changed since their approval are also logged. The function ``named`` returns a tool's catalogue
        name.
        """
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
        """Read the file of approved tools, if it has changed since it was last read.

        Returns whether the file was read. Blocks. Raises `ConfigError` if the file is unreadable or invalid.
        """
        if self.path is None:
            return False
        with self._loading:  # `follow` and `approve` read the file in threads, so one must wait for the other
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return False
            # Store the file's inode, size and time before reading it, so that an unreadable file is logged only once.
            self._stamp = stamp
            self._pins = _read(self.path)
            return True

    async def follow(self, changed: Callable[[], object]) -> None:
        """Check the file of approved tools regularly, and call ``changed`` after each change, until cancelled."""
        while self.path is not None:
            await trio.sleep(_POLL_INTERVAL)
            try:
                if await trio.to_thread.run_sync(self.load, abandon_on_cancel=True):
                    changed()
            except ConfigError as error:
                logger.warning("the previous pins stay in use: %s", error)

    async def approve(self, tools: Iterable[HeldTool]) -> None:
        """Approve ``tools`` with exactly the descriptions that they have here, even if a server has changed its
        descriptions meanwhile.

        The file is replaced atomically, and pins that other processes have added meanwhile are preserved. Raises
        `ConfigError` if the file can't be read or written.
        """
        new = [(each.member, pinned_fields(each.item)) for each in tools]
        if self.path is None:
            self._pins = _with_pins(self._pins, new)
        else:
            await trio.to_thread.run_sync(_approve, self.path, new)
            await trio.to_thread.run_sync(self.load)


_Pins: TypeAlias = dict[str, dict[str, tuple[str, JSONObject | None]]]
"""For each member and tool, the pinned hash, and the fields with this hash, if they are known."""


def _with_pins(pins: _Pins, new: Iterable[tuple[str, JSONObject]]) -> _Pins:
    pins = {member: {**tools} for member, tools in pins.items()}
    for member, fields in new:
        pins.setdefault(member, {})[fields["name"]] = _hash(fields), fields
    return pins


def _checked(data: Any, where: str) -> _Pins:
    """Check the approvals (pins) in ``data``, and return them. ``data`` is a mapping, or the content of a file.

    Raises `ConfigError` if they are invalid. ``where`` says in the error message where the pins are.
    """
    pins: _Pins = {}
    if names_given_twice(data):
        raise ConfigError(f"{where}: the key {next(iter(names_given_twice(data)))!r} is repeated")
    for member, tools in _object(data, where, "an object of members").items():
        if names_given_twice(tools):
            raise ConfigError(f"{where}: {member}: the key {next(iter(names_given_twice(tools)))!r} is repeated")
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
                    f"{place}: the hash doesn't match the tool; remove this pin and approve the tool again"
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
        return (error.errno or 0,)  # `_read` reports the error
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> _Pins:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a named pipe might never end
            raise ConfigError(f"{path} must be a regular file")
        return _checked(read_json(path), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise unreadable(path, error) from error


def _approve(path: Path, new: Iterable[tuple[str, JSONObject]]) -> None:
    """Add approved tools to the file ``path``.

    Symbolic links aren't followed, because they could lead to another file.
    """
    import fcntl  # import fcntl only here, because not every platform has it

    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # lock the folder, because the file itself is replaced
            mode = _MODE
            with suppress(FileNotFoundError):
                status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(f"refusing to write to {path}: it must be a regular file, not a symbolic link")
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
