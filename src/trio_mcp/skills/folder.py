"""Reads skills: their front matter, and the digest and size of each of their files, from a folder or from contents.

A file is opened below its folder step by step, and no step follows a link: whatever others do to the folder meanwhile,
nothing outside of it is read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import attrs

from ..classes import frozen
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
from .front_matter import front_matter_of

Stamps = Mapping[str, tuple[int, ...]]
"""Signs of files in the file system, by which a change is noticed: by their paths."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*(?:/[a-zA-Z0-9][a-zA-Z0-9._-]*)*")
_LONGEST_NAME: Final = 64
_LONGEST_DESCRIPTION: Final = 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe without a writer would let us wait for ever.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIMITS: Final = f"a skill has at most {MOST_FILES} files of {MOST_BYTES} bytes together"


@frozen(eq=False)
class SkillSource:
    """A skill with where its files come from."""

    entry: Skill
    files: Mapping[str, SkillFile]
    """The files by their paths in the skill, ``SKILL.md`` first."""
    source: Path | Mapping[str, bytes]
    """The folder of the files, or their contents by their paths."""
    stamps: Stamps
    """The stamps that the files had when they were read; of a folder alone."""

    @property
    def path(self) -> str:
        """The path of the folder of the skill in its URIs, such as acme/refunds."""
        return self.entry.root.removeprefix(SKILL_SCHEME).removesuffix("/")

    def contents_of(self, path: str) -> bytes | None:
        """Return what the file ``path`` holds, where that is what the entry tells of; else, and where the file cannot
        be read any more, `None`. For a worker thread."""
        try:
            contents = self.source[path] if isinstance(self.source, Mapping) else _contents(self.source, path)
        except (OSError, ValueError):
            return None
        file = self.files[path]
        return contents if len(contents) == file.size and digest_of(contents) == file.digest else None


def read_folder(folder: Path, prefix: str = "") -> SkillSource:
    """Read ``folder`` as a skill of the name of the folder, under ``prefix``. Raises `ValueError`, which names the file
    and the rule, for what is no skill, and `OSError` for what cannot be read. For a worker thread."""
    files: dict[str, bytes] = {}
    stamps: dict[str, tuple[int, ...]] = {}
    room = MOST_BYTES
    for path, name, at in _files_below(folder):
        contents, stamps[path] = _read(folder / path, name, at, room)
        files[path] = contents
        room -= len(contents)
    return attrs.evolve(read_files(folder.name, files, prefix), source=folder, stamps=stamps)


def read_files(name: str, contents: Mapping[str, bytes], prefix: str = "") -> SkillSource:
    """Return files, by their paths, as the skill ``name`` under ``prefix``. Raises `ValueError` as `read_folder`."""
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix[:200]!r} is no prefix of skills, which is like acme/billing")
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
        # SEP-2640, Resource Mapping: the rules of names of the Agent Skills specification.
        raise ValueError(f"{name[:200]!r} is no name of a skill: 1 to 64 of a-z, 0-9 and single hyphens in between")
    if SKILL_FILE not in contents:
        raise ValueError(f"{name}: there is no {SKILL_FILE}")
    for path in contents:
        if not is_inside(path):
            raise ValueError(f"{name}: {path[:200]!r} is no path of a file of a skill")
    if len(contents) > MOST_FILES or sum(map(len, contents.values())) > MOST_BYTES:
        raise ValueError(f"{name}: {_LIMITS}")
    front_matter = _front_matter(name, contents[SKILL_FILE])
    root = f"{SKILL_SCHEME}{f'{prefix}/' if prefix else ''}{name}/"
    paths = sorted(contents, key=lambda path: (path != SKILL_FILE, path))
    files = {path: SkillFile(root + quote(path), digest_of(contents[path]), len(contents[path])) for path in paths}
    return SkillSource(Skill(root + SKILL_FILE, front_matter, list(files.values())), files, contents, {})


def skill_folders(root: Path) -> list[tuple[Path, str]]:
    """Return the folders of skills below ``root``, however deep, each with its prefix: the path between both. A skill
    may be inside of another."""
    found = [Path(top) for top, _, names in os.walk(root) if SKILL_FILE in names and Path(top) != root]
    return [(folder, "/".join(folder.parent.relative_to(root).parts)) for folder in sorted(found)]


def stamps_of(folder: Path) -> Stamps:
    """Return the stamps of all files below ``folder`` as they are now. Raises as `read_folder`."""
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
        raise ValueError(f"{name}/{SKILL_FILE}: its name is that of its folder, not {repr(said)[:100]}")
    description = front_matter.get("description")
    if not (isinstance(description, str) and description.strip() and len(description) <= _LONGEST_DESCRIPTION):
        raise ValueError(f"{name}/{SKILL_FILE}: its description is a text of 1 to {_LONGEST_DESCRIPTION} characters")
    return front_matter


def _files_below(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the path of each file below ``folder``, hidden ones included, with its name in the folder that is open as a
    descriptor. Raises `ValueError` for links, for names that no URI can have, and for too many files."""
    top = os.open(folder, _FOLDER)
    count = 0
    try:
        for where, folders, names, at in os.fwalk(".", dir_fd=top):
            folders.sort()
            for name in folders:
                if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                    raise ValueError(f"{folder / where / name}: nothing in a skill is a link")
            for name in sorted(names):
                path = os.path.normpath(os.path.join(where, name))
                count += 1
                if count > MOST_FILES:
                    raise ValueError(f"{folder}: {_LIMITS}")
                if not is_inside(path):
                    raise ValueError(f"{folder}: {path[:200]!r} is no name of a file of a skill")
                yield path, name, at
    finally:
        os.close(top)


def _read(path: Path, name: str, at: int, room: int) -> tuple[bytes, tuple[int, ...]]:
    """Return the contents and the stamp of the file ``name`` in the open folder ``at``, of ``room`` bytes at most."""
    if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        raise ValueError(f"{path}: nothing in a skill is a link")
    with open(os.open(name, _FILE, dir_fd=at), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: this is no file")
        contents = file.read(room + 1)
    if len(contents) > room:
        raise ValueError(f"{path}: {_LIMITS}")
    return contents, _stamp(status)


def _contents(folder: Path, path: str) -> bytes:
    """Return the contents of the file ``path`` below ``folder``, opened step by step."""
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
