"""LoadedSkill: a skill of a server, read with each byte compared to what was listed; `SkillsExtension`: the methods
of the extension for skills, and its settings (SEP-2640).

Nothing is read before it is asked for (Lazy Retrieval).
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote

import trio

from ..classes import frozen
from ..jsonrpc.errors import MCPError, ProtocolViolation
from ..protocol.extensions import Extension
from ..protocol.fields import JSONObject
from ..protocol.methods import Method
from ..protocol.types.content import TextResourceContents
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.resources import PageParams, ReadResourceResult
from ..protocol.types.skills import (
    SKILL_FILE,
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    Skill,
    SkillFile,
    digest_of,
    is_inside,
)

ReadResource: TypeAlias = Callable[[str], Awaitable[ReadResourceResult]]
"""Reads the resource with a URI: see `Client.read_resource`."""
Reads: TypeAlias = tuple[ReadResource, ...]
"""Ways to read a resource, each tried where the bytes of the one before are not those of the entry: an answer that was
kept may be older than the entry."""

_IN_THREAD: Final = 64 * 1024
"""Bytes from which on a digest is made in a thread."""


class SkillChanged(MCPError):
    """A file of a skill is not what its entry says, since the skill has changed, or for worse reasons. Nothing of the
    file is kept. ``await client.get_skill(uri, refresh=True)`` gives the present entry, for which the user's approval
    is to be asked again."""


@frozen(eq=False)
class LoadedSkill:
    """A skill whose ``SKILL.md`` was read, and is what its entry says. Made by `Client.load_skill`.

    Digests protect from changes, not from the server: the server says all of a skill. ``allowed-tools`` in the front
    matter grants nothing.
    """

    entry: Skill
    """The entry that all files are compared with."""
    text: str
    """The ``SKILL.md``, with its front matter."""
    _files: Mapping[str, SkillFile] | None
    _reads: Reads

    async def read(self, path: str) -> str | bytes:
        """Return a file of the skill by its path from the folder of the skill, ``references/FORMS.md`` for example;
        text where the server gives text.

        Raises, with nothing sent, `ValueError` for a path that leaves the folder, and `SkillChanged` for a file that
        the entry does not list; then `SkillChanged` for a file that is not what the entry says, and as a call. The
        files of a skill that are made at each reading, ``entry.resources == "dynamic"``, are compared with nothing.
        """
        name = posixpath.normpath(path) if path else ""
        if not is_inside(name):
            raise ValueError(f"{path[:200]!r} is no path in a skill, which is like references/FORMS.md")
        if self._files is None:
            return await _read(self._reads, self.entry.root + quote(name), None)
        # Integrity and Verification: a file that is not listed is a verification failure, as a wrong digest is.
        if name not in self._files:
            raise SkillChanged(f"{self.entry.uri[:200]} lists no file {name[:200]!r}")
        file = self._files[name]
        return await _read(self._reads, file.uri, file)


async def load(reads: Reads, entry: Skill) -> LoadedSkill:
    """Read and compare the ``SKILL.md`` of ``entry``: see `Client.load_skill`."""
    from .folder import front_matter_of  # late: needs PyYAML, which few clients have

    try:
        files = entry.files()
    except ValueError as error:
        raise ProtocolViolation(f"the skill {entry.uri[:200]} makes no sense: {error}") from None
    text = await _read(reads, entry.uri, None if files is None else files[SKILL_FILE])
    if not isinstance(text, str):
        raise SkillChanged(f"{entry.uri[:200]} is no text")
    try:
        found = await trio.to_thread.run_sync(front_matter_of, text)
    except ValueError as error:
        raise SkillChanged(f"{entry.uri[:200]}: {error}") from None
    # Integrity and Verification: field by field, and any discrepancy is a failure.
    for name in (*found, *entry.frontmatter):
        if name not in found or name not in entry.frontmatter or not _is_same(found[name], entry.frontmatter[name]):
            raise SkillChanged(f"{entry.uri[:200]}: {name[:100]!r} in its front matter is not what was listed")
    return LoadedSkill(entry, text, files, reads)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one in JSON, where 1 is 1.0, and true is neither."""
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return first.keys() == second.keys() and all(_is_same(first[key], second[key]) for key in first)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[Any]", one), cast("list[Any]", other)
        return len(items) == len(others) and all(map(_is_same, items, others))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


async def _read(reads: Reads, uri: str, file: SkillFile | None) -> str | bytes:
    """Return the resource ``uri``, if its bytes are those that the entry has of ``file``. Raises `SkillChanged`."""
    *others, last = reads
    for read in others:
        with suppress(SkillChanged):
            return await _contents(await read(uri), uri, file)
    return await _contents(await last(uri), uri, file)


async def _contents(result: ReadResourceResult, uri: str, file: SkillFile | None) -> str | bytes:
    if len(result.contents) != 1:
        raise SkillChanged(f"{uri[:200]} has {len(result.contents)} contents, and a file has one")
    (part,) = result.contents
    if isinstance(part, TextResourceContents):
        contents = part.text.encode(errors="surrogatepass")
    else:
        try:
            contents = base64.b64decode(part.blob, validate=True)
        except ValueError:
            raise SkillChanged(f"{uri[:200]} is no base64") from None
    if file is not None:
        if len(contents) != file.size:
            raise SkillChanged(f"{uri[:200]} has {len(contents)} bytes, and {file.size} were listed")
        is_long = len(contents) >= _IN_THREAD
        digest = await trio.to_thread.run_sync(digest_of, contents) if is_long else digest_of(contents)
        if digest != file.digest:
            raise SkillChanged(f"{uri[:200]} has another digest than was listed")
    return part.text if isinstance(part, TextResourceContents) else contents


_DIRECTORY_READ: Final = "directoryRead"


class SkillsExtension(Extension[JSONObject, JSONObject]):
    """The extension for skills, ``io.modelcontextprotocol/skills``, without skills. ``directory_read``: folders can be
    listed. SEP-2640 knows no settings of clients, so none has to declare the extension."""

    def __init__(self, *, directory_read: bool = True) -> None:
        super().__init__(SKILLS_EXTENSION, server={_DIRECTORY_READ: True} if directory_read else {})
        self._listing = self.method("skills/list", PageParams, ListSkillsResult, cacheable=True, requires_client=False)
        """The request for a page of skills."""
        self._getting = self.method("skills/get", GetSkillParams, GetSkillResult, cacheable=True, requires_client=False)
        """The request for one skill."""
        self._reading = (
            self.method("resources/directory/read", ReadDirectoryParams, ReadDirectoryResult, requires_client=False)
            if directory_read
            else None
        )
        """The request for what is in a folder; `None`: it cannot be listed."""

    def _serves(self, row: Method, capabilities: ServerCapabilities) -> bool:
        """Return whether a server that has declared the extension has this method, too (SEP-2640, Capability
        Negotiation: clients MUST NOT call ``resources/directory/read`` without ``directoryRead``)."""
        settings = (capabilities.extensions or {}).get(SKILLS_EXTENSION)
        return row is not self._reading or (isinstance(settings, dict) and settings.get(_DIRECTORY_READ) is True)  # pyright: ignore[reportUnknownMemberType]


SKILLS: Final = SkillsExtension()
"""The methods, for sides that have no skills of their own."""
