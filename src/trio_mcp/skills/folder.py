"""Reads skills from a folder, or from contents in memory: the front matter, and the digest and size of each file.

A file below the folder is opened one directory at a time, without following links. So nothing outside of the folder is
read, whatever others do to it meanwhile.

Front matter is the YAML between two lines ``---`` at the top of a ``SKILL.md``. It is converted to JSON. The YAML is
version 1.2 with its core schema (YAML 1.2.2, section 10.3.2), which all readers convert to the same JSON. PyYAML only
parses the syntax, as events; the values are created here. So ``yes`` and ``2026-11-27`` are strings, and keys keep
their order. A peer may have written the YAML, so nothing here is recursive, and aliases are refused: a few of them
would turn one line into gigabytes.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import attrs

from ..classes import frozen
from ..lazy import extra, require
from ..protocol.fields import JSONObject
from ..protocol.types.skills import (
    MOST_BYTES,
    MOST_FILES,
    SKILL_FILE,
    SKILL_SCHEME,
    Skill,
    SkillFile,
    digest_of,
    is_inside,
)

if TYPE_CHECKING:
    import yaml
else:
    yaml = extra("yaml", "skills need PyYAML: install trio-mcp[skills]")

LONGEST: Final = 32 * 1024
"""Maximum length of a skill's front matter, in characters."""
_DEEPEST: Final = 32
_FENCED: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
"""Characters that are line breaks in YAML 1.1, which PyYAML supports, but ordinary characters in YAML 1.2."""

_YAML_PREFIX: Final = "tag:yaml.org,2002:"
_NULL: Final = re.compile(r"null|Null|NULL|~|")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,100}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


def check_extra() -> None:
    """Raise `ImportError` unless PyYAML is installed."""
    require(yaml)


def front_matter_of(text: str) -> JSONObject:
    """Return the parsed front matter of ``text``, the contents of a ``SKILL.md``.

    Raises `ValueError` if the front matter is missing, or isn't a mapping of strings to JSON values. Raises
    `ImportError` if PyYAML isn't installed.
    """
    check_extra()
    found = _FENCED.match(text)
    if found is None:
        raise ValueError("the file must begin with front matter: YAML between two lines ---")
    written = found[1]
    if len(written) > LONGEST:
        raise ValueError(f"the front matter is longer than {LONGEST} characters")
    if _BREAKS.search(written):
        raise ValueError("the front matter must not have the line separators U+0085, U+2028 and U+2029: use newlines")
    try:
        said = _value_of(written)
    except yaml.YAMLError as error:
        raise ValueError(f"the front matter is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(said, dict):
        raise ValueError("the front matter must be a mapping")  # noqa: TRY004 - of a file, not of an argument
    return cast("JSONObject", said)


def _value_of(written: str) -> Any:
    """Return the value of the text ``written``, which must contain a single YAML document."""
    top: list[Any] = []
    open_now: list[Any] = [top]
    """The open collections around the next value. After each mapping that waits for a value, the list has the value's
    key."""
    documents = 0
    # Use libyaml's loader, which is ten times as fast as PyYAML's own loader.
    parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for event in cast("Any", yaml).parse(written, parser):
        match type(event):
            case yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise ValueError("the front matter must be a single document of YAML")
            case yaml.AliasEvent:
                raise ValueError("the front matter must not have a YAML alias (*name): repeat the value instead")
            case yaml.MappingStartEvent | yaml.SequenceStartEvent:
                is_mapping = type(event) is yaml.MappingStartEvent
                if event.tag not in (None, "!", f"{_YAML_PREFIX}{'map' if is_mapping else 'seq'}"):
                    raise ValueError(f"the front matter has the tag {event.tag[:100]}, which JSON does not support")
                made: Any = {} if is_mapping else []
                _put(open_now, made, None)
                open_now.append(made)
                if len(open_now) > 2 * _DEEPEST:
                    raise ValueError(f"the front matter has more than {_DEEPEST} levels of nesting")
            case yaml.MappingEndEvent | yaml.SequenceEndEvent:
                del open_now[-1]
            case yaml.ScalarEvent:
                _put(open_now, _scalar(event), event.value)
            case _:  # pyright: ignore[reportUnknownVariableType] - the begin and the end of the whole
                pass
    return top[0] if top else None


class _MappingKey(str):
    __slots__ = ()


def _put(open_now: list[Any], value: Any, written: str | None) -> None:
    """Add a parsed YAML value to the innermost collection that is still incomplete: as an item of a list, or as a key
    or value of a mapping.

    ``written`` is the source text of a scalar. A scalar that is a key stays this text.
    """
    now: Any = open_now[-1]
    if type(now) is list:
        cast("list[Any]", now).append(value)
    elif type(now) is _MappingKey:
        del open_now[-1]
        open_now[-1][str(now)] = value
    else:
        if written is None:
            raise ValueError("the keys of the front matter must be text")
        if written in now:
            raise ValueError(f"the front matter has the key {written[:100]!r} twice")
        open_now.append(_MappingKey(written))


def _scalar(event: Any) -> Any:
    """Return the value of a YAML scalar according to YAML's core schema.

    The type of the value is given by the scalar's tag or, without a tag, by the form of the text.
    """
    text: str = event.value
    tag: str | None = event.tag
    if tag not in (None, "!"):
        kind = tag.removeprefix(_YAML_PREFIX)
    elif tag == "!" or not event.implicit[0]:
        kind = "str"
    else:
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(text)), "str")
    pattern = _KINDS.get(kind)
    if kind == "str":
        return text
    if pattern is None:
        raise ValueError(f"the front matter has the tag {kind[:100]}, which JSON does not support")
    if not pattern.fullmatch(text):
        raise ValueError(f"the front matter has {text[:100]!r}, which is not a valid {kind}")
    match kind:
        case "null":
            return None
        case "bool":
            return text in ("true", "True", "TRUE")
        case "int":
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        case _:
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                raise ValueError(f"the front matter has the number {text[:100]}, which JSON does not support")
            return number


_KINDS: Final = {"null": _NULL, "bool": _BOOL, "int": _INT, "float": _FLOAT}


Stamps = Mapping[str, tuple[int, ...]]
"""Metadata of the file system for each file, by path. It shows whether the file has changed."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*(?:/[a-zA-Z0-9][a-zA-Z0-9._-]*)*")
_LONGEST_NAME: Final = 64
_LONGEST_DESCRIPTION: Final = 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC if hasattr(os, "O_DIRECTORY") else 0
# Open with O_NONBLOCK: otherwise, opening a pipe that has no writer would block forever.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_DIRECTORY") else 0
"""Flags for opening a file. Windows has no equivalent flags, and can't open files below an open folder either."""
_LIMITS: Final = f"a skill has at most {MOST_FILES} files of {MOST_BYTES} bytes together"


@frozen(eq=False)
class SkillSource:
    """A skill with its files, which are in a folder or in memory."""

    entry: Skill
    files: Mapping[str, SkillFile]
    """The entries of the files by path in the skill, with ``SKILL.md`` first."""
    source: Path | Mapping[str, bytes]
    """The folder that has the files, or the contents of the files by path."""
    stamps: Stamps
    """The metadata of the files when they were read. Only for a skill in a folder."""

    @property
    def path(self) -> str:
        """The path of the skill in URIs, for example ``acme/refunds``. Its last part is the name of the skill's
        folder."""
        return self.entry.root.removeprefix(SKILL_SCHEME).removesuffix("/")

    def contents_of(self, path: str) -> bytes | None:
        """Return the contents of the file ``path`` of the skill.

        Return `None` if the file can't be read, or has changed since its digest and size were computed. Blocks, so call
        this method in a worker thread.
        """
        try:
            contents = self.source[path] if isinstance(self.source, Mapping) else _contents(self.source, path)
        except (OSError, ValueError):
            return None
        file = self.files[path]
        return contents if len(contents) == file.size and digest_of(contents) == file.digest else None


def read_folder(folder: Path, prefix: str = "") -> SkillSource:
    """Read the skill in ``folder``. The skill's path in URIs consists of ``prefix`` and the name of the folder.

    Raises `ValueError`, which names the file and the rule, if it isn't a valid skill, and `OSError` if it cannot be
    read. Blocks: call it in a worker thread.
    """
    files: dict[str, bytes] = {}
    stamps: dict[str, tuple[int, ...]] = {}
    room = MOST_BYTES
    for path, name, at in _files_below(folder):
        contents, stamps[path] = _read(folder / path, name, at, room)
        files[path] = contents
        room -= len(contents)
    return attrs.evolve(read_files(folder.name, files, prefix), source=folder, stamps=stamps)


def read_files(name: str, contents: Mapping[str, bytes], prefix: str = "") -> SkillSource:
    """Return the skill ``name`` with the given files.

    ``contents`` maps the paths of the files to their contents. In URIs, ``prefix`` is the path before the name. Raises
    `ValueError` like `read_folder`.
    """
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix[:200]!r} is not a valid prefix for skills: write it like acme/billing")
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
        # SEP-2640, Resource Mapping: a name must follow the rules of the Agent Skills specification.
        raise ValueError(
            f"{name[:200]!r} is not a valid skill name: use 1 to 64 of the characters a-z and 0-9, "
            "with single hyphens between them"
        )
    if SKILL_FILE not in contents:
        raise ValueError(f"{name}: {SKILL_FILE} is missing")
    for path in contents:
        if not is_inside(path):
            raise ValueError(f"{name}: {path[:200]!r} is not a valid path for a skill file")
    if len(contents) > MOST_FILES or sum(map(len, contents.values())) > MOST_BYTES:
        raise ValueError(f"{name}: {_LIMITS}")
    front_matter = _front_matter(name, contents[SKILL_FILE])
    root = f"{SKILL_SCHEME}{f'{prefix}/' if prefix else ''}{name}/"
    paths = sorted(contents, key=lambda path: (path != SKILL_FILE, path))
    files = {path: SkillFile(root + quote(path), digest_of(contents[path]), len(contents[path])) for path in paths}
    return SkillSource(Skill(root + SKILL_FILE, front_matter, list(files.values())), files, contents, {})


def skill_folders(root: Path) -> list[tuple[Path, str]]:
    """Return all folders below ``root``, at any depth, that contain a skill.

    Each folder comes with its prefix, the path between ``root`` and the folder. A skill may contain another skill.
    """
    found = [Path(top) for top, _, names in os.walk(root) if SKILL_FILE in names and Path(top) != root]
    return [(folder, "/".join(folder.parent.relative_to(root).parts)) for folder in sorted(found)]


def stamps_of(folder: Path) -> Stamps:
    """Return metadata, such as modification times, of all files below ``folder``. If the metadata differs later, a file
    has changed.

    Raises the errors of `read_folder`.
    """
    stat_of: Any = os.stat
    return {path: _stamp(stat_of(name, dir_fd=at, follow_symlinks=False)) for path, name, at in _files_below(folder)}


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _front_matter(name: str, contents: bytes) -> JSONObject:
    try:
        front_matter = front_matter_of(contents.decode())
    except ValueError as error:
        raise ValueError(f"{name}/{SKILL_FILE}: {error}") from None
    if (said := front_matter.get("name")) != name:
        raise ValueError(
            f"{name}/{SKILL_FILE}: the name must be equal to the name of the skill's folder, not {repr(said)[:100]}"
        )
    description = front_matter.get("description")
    if not (isinstance(description, str) and description.strip() and len(description) <= _LONGEST_DESCRIPTION):
        raise ValueError(f"{name}/{SKILL_FILE}: the description must be text of 1 to {_LONGEST_DESCRIPTION} characters")
    return front_matter


def _files_below(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield each file below ``folder``, including hidden files, as the file's path, its name, and the descriptor of its
    folder, which is open.

    Raises `ValueError` for links, for names that are invalid in URIs, and for too many files.
    """
    top = os.open(folder, _FOLDER)
    count = 0
    try:
        for where, folders, names, at in os.fwalk(".", dir_fd=top):
            folders.sort()
            for name in folders:
                if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                    raise ValueError(f"{folder / where / name}: a skill must not contain symbolic links")
            for name in sorted(names):
                path = os.path.normpath(os.path.join(where, name))
                count += 1
                if count > MOST_FILES:
                    raise ValueError(f"{folder}: {_LIMITS}")
                if not is_inside(path):
                    raise ValueError(f"{folder}: {path[:200]!r} is not a valid name for a skill file")
                yield path, name, at
    finally:
        os.close(top)


def _read(path: Path, name: str, at: int, room: int) -> tuple[bytes, tuple[int, ...]]:
    """Read the file ``name`` in the folder with the open descriptor ``at``. Return the file's contents and metadata.

    Raises `ValueError` if the file has more than ``room`` bytes.
    """
    if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        raise ValueError(f"{path}: a skill must not contain symbolic links")
    with open(os.open(name, _FILE, dir_fd=at), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: a skill file must be a regular file")
        contents = file.read(room + 1)
    if len(contents) > room:
        raise ValueError(f"{path}: {_LIMITS}")
    return contents, _stamp(status)


def _contents(folder: Path, path: str) -> bytes:
    """Return the contents of the file ``path`` below ``folder``. No link is followed, because each directory in the
    path is opened separately."""
    at = os.open(folder, _FOLDER)
    try:
        *folders, name = path.split("/")
        for each in folders:
            inner = os.open(each, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return _read(folder / path, name, at, MOST_BYTES)[0]
    finally:
        os.close(at)
