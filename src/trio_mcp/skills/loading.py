"""Skills of a server, for its clients: listed, described, and read with each byte compared to what was listed.

Nothing is read before it is asked for (SEP-2640, Lazy Retrieval). Who shows a skill to a model has its user's consent:
its text is the server's, and ``allowed-tools`` in it grants nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

import trio

from ..classes import frozen
from ..client.client import Client
from ..client.results import Listing, Pages
from ..hosting.group import Group
from ..jsonrpc.codec import canonical_value
from ..jsonrpc.errors import MCPError, ProtocolViolation
from ..protocol.types.content import TextResourceContents
from ..protocol.types.skills import (
    SKILL_FILE,
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    Skill,
    SkillFile,
    is_inside,
)
from .folder import digest_of
from .front_matter import front_matter_of

_LISTING: Final = Listing(ListSkillsResult, "skills", "uri", "skill async for skill in list_skills(client)")


class SkillChanged(MCPError):
    """A file of a skill is not what was listed. Nothing of it is kept: get the skill anew, `get_skill` with
    ``refresh``, and ask the user again."""


def list_skills(client: Client, *, refresh: bool = False) -> AsyncIterator[Skill]:
    """Iterate over the skills of a server, page by page, as `Client.list_tools` does. ``client`` was opened with
    ``extensions=[Skills()]``; without, or where the server has no skills, the first step raises `MethodUnavailable`."""
    return Pages(client.request, "skills/list", client.settings.max_pages, refresh=refresh, listing=_LISTING)


async def get_skill(client: Client, uri: str, *, refresh: bool = False) -> Skill:
    """Return the skill whose ``SKILL.md`` is at ``uri``, one that is not listed, too. An unknown one is a `PeerError`
    (-32602). ``refresh``: see `Client.request`. Raises as a call."""
    result = await client.request("skills/get", GetSkillParams(uri), GetSkillResult, refresh=refresh)
    return result.skill


async def group_skills(group: Group) -> AsyncIterator[tuple[str, Skill]]:
    """Iterate over the skills of all members that have any, each with the name of its member: a skill is known by both,
    since two members may have skills of one name and one URI. The group was opened with ``extensions=[Skills()]``."""
    for member in group.statuses:
        client = await group.client(member)
        if SKILLS_EXTENSION in (client.server_capabilities.extensions or {}):
            async for skill in list_skills(client):
                yield member, skill


@frozen(eq=False)
class LoadedSkill:
    """A skill whose ``SKILL.md`` was read, and was what its entry says. Made by `load_skill`."""

    entry: Skill
    text: str
    """The ``SKILL.md``, front matter included."""
    _client: Client
    _files: dict[str, SkillFile] | None

    async def read(self, path: str) -> str | bytes:
        """Return the file ``path`` of the skill, ``references/FORMS.md`` for example: text where the server gives text.

        Raises, with nothing sent, `ValueError` for a path that leaves the folder of the skill or is not listed; and
        `SkillChanged` for a file that is not what was listed. The files of a skill that lists none are not compared.
        """
        if not is_inside(path):
            raise ValueError(f"{path[:200]!r} is no path in a skill, which is like references/FORMS.md")
        if self._files is not None and path not in self._files:
            raise ValueError(f"{self.entry.name} lists no file {path[:200]!r}")
        file = None if self._files is None else self._files[path]
        return await _read(self._client, self.entry.root + quote(path) if file is None else file.uri, file)


async def load_skill(client: Client, entry: Skill) -> LoadedSkill:
    """Read the ``SKILL.md`` of ``entry``, and compare size, digest and front matter with it (SEP-2640, Integrity and
    Verification). Raises `SkillChanged`, `ProtocolViolation` for an entry that makes no sense, and as a call."""
    try:
        files = entry.files()
    except ValueError as error:
        raise ProtocolViolation(f"the skill {entry.uri[:200]} makes no sense: {error}") from None
    text = await _read(client, entry.uri, None if files is None else files[SKILL_FILE])
    if not isinstance(text, str):
        raise SkillChanged(f"{entry.uri[:200]} is no text")
    try:
        found = await trio.to_thread.run_sync(front_matter_of, text)
    except ValueError as error:
        raise SkillChanged(f"{entry.uri[:200]}: {error}") from None
    if different := [
        name
        for name in (*found, *entry.frontmatter)
        if name not in found
        or name not in entry.frontmatter
        or canonical_value(found[name]) != canonical_value(entry.frontmatter[name])
    ]:
        raise SkillChanged(f"{entry.uri[:200]}: {different[0][:100]!r} is not what was listed")
    return LoadedSkill(entry, text, client, files)


async def _read(client: Client, uri: str, file: SkillFile | None) -> str | bytes:
    result = await client.read_resource(uri)
    if len(result.contents) != 1:
        raise SkillChanged(f"{uri[:200]} has {len(result.contents)} contents, and a file has one")
    (part,) = result.contents
    if isinstance(part, TextResourceContents):
        contents = part.text.encode(errors="surrogatepass")
    else:
        try:
            contents = base64.b64decode(part.blob, validate=True)
        except (binascii.Error, ValueError):
            raise SkillChanged(f"{uri[:200]} is no base64") from None
    if file is not None and len(contents) != file.size:
        raise SkillChanged(f"{uri[:200]} has {len(contents)} bytes, and {file.size} were listed")
    if file is not None and await trio.to_thread.run_sync(digest_of, contents) != file.digest:
        raise SkillChanged(f"{uri[:200]} has another digest than was listed")
    return part.text if isinstance(part, TextResourceContents) else contents
