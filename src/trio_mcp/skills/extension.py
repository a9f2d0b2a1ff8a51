"""Skills: the extension of SEP-2640, with the skills that a server offers, and for clients that want to use some."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import trio

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.extensions import Extension
from ..protocol.fields import JSONObject
from ..protocol.types.content import BlobResourceContents, TextResourceContents
from ..protocol.types.resources import PageParams, ReadResourceResult, Resource
from ..protocol.types.skills import (
    SKILL_FILE,
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from ..server.resources import ResourceNotFound
from .folder import BadSkill, ReadSkill, read_files, read_folder

_PAGE: Final = 100
"""Skills in a page, each with its list of files."""
_DIRECTORY_PAGE: Final = 500
_SCHEME: Final = "skill://"


class Skills(Extension[JSONObject, JSONObject]):
    """Skills: folders with a ``SKILL.md`` and other files for a model, served as resources (SEP-2640).

        server = Server("billing", extensions=[Skills("skills/refunds", "skills/invoices")])

    Each of the ``folders`` is a skill of its name; `add_folder` adds one under a prefix, `add_files` one of contents
    made by code. They are read and hashed when they are added. For clients: ``extensions=[Skills()]``, and
    `list_skills`. ``directory_read=False``: the server does not list folders. What a token needs, or does not
    see, is not said by skill: all callers have all skills.

    Raises `BadSkill`, a `ValueError`, for what is no skill, and `OSError`. Needs the extra ``trio-mcp[skills]``.
    """

    def __init__(self, *folders: str | Path, directory_read: bool = True) -> None:
        super().__init__(SKILLS_EXTENSION, server={"directoryRead": True} if directory_read else {})
        # SEP-2640 knows no settings of clients, so none is required to declare the extension.
        self._list = self.method("skills/list", PageParams, ListSkillsResult, cacheable=True, requires_client=False)
        self._get = self.method("skills/get", GetSkillParams, GetSkillResult, cacheable=True, requires_client=False)
        self._read_directory = (
            self.method("resources/directory/read", ReadDirectoryParams, ReadDirectoryResult, requires_client=False)
            if directory_read
            else None
        )
        self._skills: dict[str, ReadSkill] = {}
        """The skills by the paths of their folders, such as acme/refunds."""
        self._serials: dict[str, int] = {}
        self._unlisted = set[str]()
        self._servers: list[Any] = []
        for folder in folders:
            self.add_folder(folder)

    def add_folder(self, folder: str | Path, prefix: str = "", *, listed: bool = True) -> None:
        """Offer ``folder`` as ``skill://PREFIX/NAME``. ``listed=False``: for those who know its URI. Clients of servers
        that run are told. Raises as the class, and `ValueError` for a name that is taken."""
        self._offer_new(read_folder(Path(folder).absolute(), prefix), listed=listed)

    def add_files(self, name: str, files: Mapping[str, str | bytes], prefix: str = "", *, listed: bool = True) -> None:
        """Offer ``files``, contents by their paths, as ``skill://PREFIX/NAME``. See `add_folder`."""
        contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        self._offer_new(read_files(name, contents, prefix), listed=listed)

    def _offer_new(self, skill: ReadSkill, *, listed: bool) -> None:
        path = _path_of(skill)
        if path in self._skills:
            raise ValueError(f"there is a skill {skill.entry.root!r} already")
        self._skills[path] = skill
        self._serials[path] = max(self._serials.values(), default=0) + 1
        if not listed:
            self._unlisted.add(path)
        for server in self._servers:
            self._offer(server, path)

    async def refresh(self) -> None:
        """Read all folders again, and tell clients of each skill that has changed: of its ``SKILL.md``, whichever of
        its files it was. A folder that is no skill any more stays as it was, and raises `BadSkill` once the others are
        read."""
        fault: Exception | None = None
        for path in tuple(self._skills):
            try:
                await self._read_again(path)
            except (BadSkill, OSError) as error:
                fault = error
        if fault is not None:
            raise fault

    async def _read_again(self, path: str) -> None:
        before = self._skills[path]
        if isinstance(before.source, dict):
            return
        prefix = path.rpartition("/")[0]
        after = await trio.to_thread.run_sync(read_folder, before.source, prefix)
        if after.entry == self._skills[path].entry:
            return
        self._skills[path] = after
        for server in self._servers:
            server.resources.remove(before.entry.uri)
            self._offer(server, path)
            server.resource_updated(after.entry.uri)

    # What a server offers

    def register(self, server: Any) -> None:
        """Offer the skills on ``server``: see `Extension.register`."""
        server.handles(self._list)(self._answer_list)
        server.handles(self._get)(self._answer_get)
        if self._read_directory is not None:
            server.handles(self._read_directory)(self._answer_directory)
        described = "A file of a skill. The skills, with their files, are listed by skills/list."
        server.resource(f"{_SCHEME}{{+path}}", name="skill-file", description=described)(self._read)
        self._servers.append(server)
        for path in self._skills:
            self._offer(server, path)

    def _offer(self, server: Any, path: str) -> None:
        """List the ``SKILL.md`` of a skill among the resources, unless the skill is not listed."""
        if path in self._unlisted:
            return
        entry = self._skills[path].entry

        async def read() -> ReadResourceResult:
            return await self._contents(f"{path}/{SKILL_FILE}", entry.uri)

        size = self._skills[path].files[SKILL_FILE].size
        server.resource(
            entry.uri, name=entry.name, description=entry.description, mime_type="text/markdown", size=size
        )(read)

    async def _answer_list(self, params: PageParams) -> ListSkillsResult:
        after = _number(params.cursor)
        listed = ((self._serials[path], path) for path in self._skills if path not in self._unlisted)
        page = list(islice(((serial, path) for serial, path in sorted(listed) if serial > after), _PAGE + 1))
        following = str(page[_PAGE - 1][0]) if len(page) > _PAGE else None
        return ListSkillsResult([self._skills[path].entry for _, path in page[:_PAGE]], following)

    async def _answer_get(self, params: GetSkillParams) -> GetSkillResult:
        path, _, file = _decoded(params.uri).rpartition("/")
        skill = self._skills.get(path)
        if skill is None or file != SKILL_FILE:
            raise CodedError(INVALID_PARAMS, f"No skill is served at {params.uri[:200]}", {"uri": params.uri[:1000]})
        return GetSkillResult(skill.entry)

    async def _answer_directory(self, params: ReadDirectoryParams) -> ReadDirectoryResult:
        asked, after = _decoded(params.uri), params.cursor or ""
        children: dict[str, Resource] = {}
        for path, skill in self._skills.items():
            if (path + "/").startswith(asked + "/") or (asked + "/").startswith(path + "/"):
                for name, file in skill.files.items():
                    rest = f"{path}/{name}".removeprefix(asked + "/")
                    if rest != f"{path}/{name}":
                        child, below, _ = rest.partition("/")
                        children[child] = _child(params.uri, child, None if below else file.size)
        if not children or params.uri.endswith("/"):
            raise CodedError(
                INVALID_PARAMS, f"No folder of skills is at {params.uri[:200]}", {"uri": params.uri[:1000]}
            )
        page = [children[name] for name in sorted(children) if name > after]
        following = page[_DIRECTORY_PAGE - 1].name if len(page) > _DIRECTORY_PAGE else None
        return ReadDirectoryResult(page[:_DIRECTORY_PAGE], following)

    async def _read(self, path: str) -> ReadResourceResult:
        return await self._contents(path, _SCHEME + quote(path))

    async def _contents(self, path: str, uri: str) -> ReadResourceResult:
        """Return a file of a skill. The bytes are those that the entry tells of: after a change the entry is made
        anew, and its clients are told, before the file is given out."""
        found = next(self._owners(path), None)
        if found is None:
            raise ResourceNotFound
        owner, name = found
        try:
            contents = await trio.to_thread.run_sync(partial(self._skills[owner].bytes_of, name))
            if not self._skills[owner].is_still(name, contents):
                await self._read_again(owner)
                contents = await trio.to_thread.run_sync(partial(self._skills[owner].bytes_of, name))
        except (BadSkill, OSError, KeyError):
            raise ResourceNotFound from None
        if not (name in self._skills[owner].files and self._skills[owner].is_still(name, contents)):
            raise ResourceNotFound
        return ReadResourceResult([_part(uri, name, contents)])

    def _owners(self, path: str) -> Iterator[tuple[str, str]]:
        """Return the skills that have the file ``path``, the deepest first, each with the path of the file there."""
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self._skills and (name := path.removeprefix(folder + "/")) in self._skills[folder].files:
                yield folder, name


def _path_of(skill: ReadSkill) -> str:
    return skill.entry.root.removeprefix(_SCHEME).removesuffix("/")


def _decoded(uri: str) -> str:
    """Return the path that a URI of a skill's file or folder names; empty for other URIs."""
    return unquote(uri.removeprefix(_SCHEME)) if uri.startswith(_SCHEME) else ""


def _number(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 20):
        raise CodedError(INVALID_PARAMS, "Invalid params: this is no cursor of skills/list")
    return int(cursor)


def _child(folder: str, name: str, size: int | None) -> Resource:
    uri = f"{folder}/{quote(name)}"
    if size is None:
        return Resource(uri, name, mime_type="inode/directory")
    return Resource(uri, name, mime_type=_type_of(name), size=size)


def _type_of(name: str) -> str | None:
    return "text/markdown" if name.endswith(".md") else mimetypes.guess_type(name)[0]


def _part(uri: str, name: str, contents: bytes) -> TextResourceContents | BlobResourceContents:
    """Return ``contents`` as text where they are text, and give the same bytes back, else as a blob."""
    try:
        return TextResourceContents(uri, contents.decode(), _type_of(name) or "text/plain")
    except UnicodeDecodeError:
        kind = _type_of(name) or "application/octet-stream"
        return BlobResourceContents(uri, base64.b64encode(contents).decode(), kind)
