"""Reads a folder as a skill: its front matter, and the digest and size of each of its files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ..classes import frozen
from ..protocol.fields import JSONObject
from ..protocol.types.skills import MOST_BYTES, MOST_FILES, SKILL_FILE, Skill, SkillFile
from .front_matter import front_matter_of

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*(?:/[a-zA-Z0-9][a-zA-Z0-9._-]*)*")
_LONGEST_NAME: Final = 64


class BadSkill(ValueError):
    """A folder, or files, that are no skill. The text names the file and the rule."""


@frozen(eq=False)
class ReadSkill:
    """A skill with where its files come from."""

    entry: Skill
    files: dict[str, SkillFile]
    """The files by their paths in the skill."""
    source: Path | dict[str, bytes]
    """The folder of the files, or their contents by their paths."""

    def bytes_of(self, path: str) -> bytes:
        """Return what the file ``path`` holds now. Raises `OSError`, and `BadSkill` for a file that has become another
        kind of thing."""
        return self.source[path] if isinstance(self.source, dict) else _contents(self.source / path, self.source)

    def is_still(self, path: str, contents: bytes) -> bool:
        """Return whether ``contents`` are those that the entry tells of."""
        file = self.files[path]
        return len(contents) == file.size and digest_of(contents) == file.digest


def digest_of(contents: bytes) -> str:
    """Return the digest of a file (SEP-2640, Resources: SHA-256 of the raw bytes)."""
    return f"sha256:{sha256(contents).hexdigest()}"


def read_folder(folder: Path, prefix: str = "") -> ReadSkill:
    """Read ``folder`` as a skill of the name of the folder, under ``prefix``. Raises `BadSkill`, and `OSError` for what
    cannot be read. For a worker thread."""
    files = {path: _contents(folder / path, folder) for path in _paths(folder)}
    skill = read_files(folder.name, files, prefix)
    return ReadSkill(skill.entry, skill.files, folder)


def read_files(name: str, files: dict[str, bytes], prefix: str = "") -> ReadSkill:
    """Return ``files`` as the skill ``name`` under ``prefix``. Raises `BadSkill`."""
    if prefix and _PREFIX.fullmatch(prefix) is None:
        raise BadSkill(f"{prefix[:200]!r} is no prefix of skills, which is like acme/billing")
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
        # SEP-2640, Resource Mapping
        raise BadSkill(f"{name[:200]!r} is no name of a skill: 1 to 64 of a-z, 0-9 and single hyphens in between")
    if SKILL_FILE not in files:
        raise BadSkill(f"{name}: there is no {SKILL_FILE}")
    if len(files) > MOST_FILES or sum(map(len, files.values())) > MOST_BYTES:
        raise BadSkill(f"{name}: a skill has at most {MOST_FILES} files of {MOST_BYTES} bytes together")
    front_matter = _front_matter(name, files[SKILL_FILE])
    root = f"skill://{f'{prefix}/' if prefix else ''}{name}/"
    described = {path: SkillFile(root + quote(path), digest_of(data), len(data)) for path, data in files.items()}
    entry = Skill(root + SKILL_FILE, front_matter, list(described.values()))
    return ReadSkill(entry, described, files)


def _front_matter(name: str, contents: bytes) -> JSONObject:
    try:
        front_matter = front_matter_of(contents.decode())
    except ValueError as error:
        raise BadSkill(f"{name}/{SKILL_FILE}: {error}") from None
    if front_matter.get("name") != name:
        raise BadSkill(f"{name}/{SKILL_FILE}: its name is that of its folder, not {front_matter.get('name')!r:.100}")
    description = front_matter.get("description")
    if not isinstance(description, str) or not description.strip():
        raise BadSkill(f"{name}/{SKILL_FILE}: it has no description")
    return front_matter


def _paths(folder: Path) -> Iterator[str]:
    """Return the paths of all files below ``folder``, ``SKILL.md`` first, hidden ones included."""
    found: list[str] = []
    for top, folders, names in os.walk(folder):
        folders.sort()
        for each in folders:
            if Path(top, each).is_symlink():
                raise BadSkill(f"{Path(top, each)}: a folder of a skill is no link")
        found += [Path(top, name).relative_to(folder).as_posix() for name in names]
        if len(found) > MOST_FILES:
            raise BadSkill(f"{folder}: a skill has at most {MOST_FILES} files")
    found.sort(key=lambda path: (path != SKILL_FILE, path))
    return iter(found)


def _contents(path: Path, folder: Path) -> bytes:
    # A link may lead to a file of the same skill, and nowhere else.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadSkill(f"{path}: a link leads out of the folder of the skill")
    # A pipe without a writer would let us wait for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadSkill(f"{path}: this is no file")
        contents = file.read(MOST_BYTES + 1)
    if len(contents) > MOST_BYTES:
        raise BadSkill(f"{path}: a skill has at most {MOST_BYTES} bytes")
    return contents
