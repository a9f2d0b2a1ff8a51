"""`LoadedSkill`: a skill of a server, whose files are verified when they are read. `SkillsExtension`: the methods and
settings of the skills extension (SEP-2640).

Files are read only when requested (Lazy Retrieval).
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
from ..protocol.types.offers import PageParams, ReadResourceResult
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
"""Function that reads the resource at a URI. See `Client.read_resource`."""
Reads: TypeAlias = tuple[ReadResource, ...]
"""Functions that read a resource. If the bytes don't match the skill's entry, the next function is tried, because a
cached response may be older than the entry."""

_IN_THREAD: Final = 64 * 1024
"""Size in bytes from which on digests are computed in a thread."""


class SkillChanged(MCPError):
    """A file of a skill doesn't match the digest or size in the server's list of skills: the skill has changed, or was
    tampered with.

    The file's contents are discarded. ``await client.get_skill(uri, refresh=True)`` returns the current entry, for
    which you must ask for the user's approval again.
    """


@frozen(eq=False)
class LoadedSkill:
    """A server's skill whose ``SKILL.md`` was read and verified. Created by `Client.load_skill`.

    Digests protect against changes, not against the server, which provides both the entry and the files.
    ``allowed-tools`` in the front matter grants nothing.
    """

    entry: Skill
    """The skill's entry, with which all files are compared."""
    text: str
    """The contents of ``SKILL.md``, including its front matter."""
    _files: Mapping[str, SkillFile] | None
    _reads: Reads

    async def read(self, path: str) -> str | bytes:
        """Read a file of the skill, verify it, and return its contents. They are text if the server sends text, and
        bytes otherwise.

        ``path`` is the path in the skill's folder, for example ``references/FORMS.md``.

        Files of a dynamic skill (``entry.resources == "dynamic"``) are generated at each read, and not compared.

        Raises:
            ValueError: Before anything is sent, if the path leaves the folder.
            SkillChanged: Before anything is sent, if the entry doesn't list the file; or later, if the file doesn't
                match the entry.

        Any error of a call can be raised as well.
        """
        name = posixpath.normpath(path) if path else ""
        if not is_inside(name):
            raise ValueError(f"{path[:200]!r} is not a path in a skill: write it like references/FORMS.md")
        if self._files is None:
            return await _read(self._reads, self.entry.root + quote(name), None)
        # SEP-2640, Integrity and Verification: a file that isn't listed is an error, like a file with a wrong digest.
        if name not in self._files:
            raise SkillChanged(f"{self.entry.uri[:200]} lists no file {name[:200]!r}")
        file = self._files[name]
        return await _read(self._reads, file.uri, file)


async def load(reads: Reads, entry: Skill) -> LoadedSkill:
    """Read the ``SKILL.md`` of the skill ``entry``, and verify that the file matches the server's list of skills. See
    `Client.load_skill`."""
    from .folder import front_matter_of  # lazy import: the module needs PyYAML, which few clients have

    try:
        files = entry.files()
    except ValueError as error:
        raise ProtocolViolation(f"the skill {entry.uri[:200]} is invalid: {error}") from None
    text = await _read(reads, entry.uri, None if files is None else files[SKILL_FILE])
    if not isinstance(text, str):
        raise SkillChanged(f"the file {entry.uri[:200]} must be text, not binary data")
    try:
        found = await trio.to_thread.run_sync(front_matter_of, text)
    except ValueError as error:
        raise SkillChanged(f"{entry.uri[:200]}: {error}") from None
    # SEP-2640, Integrity and Verification: compare the front matter field by field, and fail for any difference.
    for name in (*found, *entry.frontmatter):
        if name not in found or name not in entry.frontmatter or not _is_same(found[name], entry.frontmatter[name]):
            raise SkillChanged(
                f"{entry.uri[:200]}: {name[:100]!r} in the front matter differs from the server's listing"
            )
    return LoadedSkill(entry, text, files, reads)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON. The number 1 equals 1.0, but true equals neither."""
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return first.keys() == second.keys() and all(_is_same(first[key], second[key]) for key in first)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[Any]", one), cast("list[Any]", other)
        return len(items) == len(others) and all(map(_is_same, items, others))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


async def _read(reads: Reads, uri: str, file: SkillFile | None) -> str | bytes:
    """Read the resource ``uri`` and return the resource. Raises `SkillChanged` if its bytes don't match the digest and
    size in ``file``."""
    *others, last = reads
    for read in others:
        with suppress(SkillChanged):
            return await _contents(await read(uri), uri, file)
    return await _contents(await last(uri), uri, file)


async def _contents(result: ReadResourceResult, uri: str, file: SkillFile | None) -> str | bytes:
    if len(result.contents) != 1:
        raise SkillChanged(f"the response for {uri[:200]} must have one item of contents, not {len(result.contents)}")
    (part,) = result.contents
    if isinstance(part, TextResourceContents):
        contents = part.text.encode(errors="surrogatepass")
    else:
        try:
            contents = base64.b64decode(part.blob, validate=True)
        except ValueError:
            raise SkillChanged(f"the contents of {uri[:200]} must be valid base64") from None
    if file is not None:
        if len(contents) != file.size:
            raise SkillChanged(f"{uri[:200]} has {len(contents)} bytes, but the server's listing says {file.size}")
        is_long = len(contents) >= _IN_THREAD
        digest = await trio.to_thread.run_sync(digest_of, contents) if is_long else digest_of(contents)
        if digest != file.digest:
            raise SkillChanged(f"the digest of {uri[:200]} differs from the digest in the server's listing")
    return part.text if isinstance(part, TextResourceContents) else contents


_DIRECTORY_READ: Final = "directoryRead"


class SkillsExtension(Extension[JSONObject, JSONObject]):
    """The skills extension (``io.modelcontextprotocol/skills``), for a client, or for a server without its own skills.

    With ``directory_read``, clients can list folders. Clients needn't declare the extension, because SEP-2640 defines
    no client settings.
    """

    def __init__(self, *, directory_read: bool = True) -> None:
        super().__init__(SKILLS_EXTENSION, server={_DIRECTORY_READ: True} if directory_read else {})
        self._listing = self.method("skills/list", PageParams, ListSkillsResult, cacheable=True, requires_client=False)
        """The request method for a page of skills."""
        self._getting = self.method("skills/get", GetSkillParams, GetSkillResult, cacheable=True, requires_client=False)
        """The request method for one skill."""
        self._reading = (
            self.method("resources/directory/read", ReadDirectoryParams, ReadDirectoryResult, requires_client=False)
            if directory_read
            else None
        )
        """The request method for the contents of a folder. `None` if folders cannot be listed."""

    def _serves(self, row: Method, capabilities: ServerCapabilities) -> bool:
        """Return whether a server with these ``capabilities`` supports ``row``, a method of the skills extension.

        Without ``directoryRead``, the server doesn't have ``resources/directory/read`` (SEP-2640, Capability
        Negotiation).
        """
        settings = (capabilities.extensions or {}).get(SKILLS_EXTENSION)
        return row is not self._reading or (isinstance(settings, dict) and settings.get(_DIRECTORY_READ) is True)  # pyright: ignore[reportUnknownMemberType]


SKILLS: Final = SkillsExtension()
"""The methods of the skills extension, for clients and for servers without skills."""
