"""`SkillOffers`: how a server lists its skills, and how clients get and read them (SEP-2640).

The files of a skill are resources. Its ``SKILL.md`` is listed among all resources; the others can be read by URI.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast
from urllib.parse import quote, unquote

import attrs

from ...classes import define, show_fields
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.types.content import BlobResourceContents, TextResourceContents
from ...protocol.types.resources import PageParams, Resource
from ...protocol.types.skills import (
    SKILL_FILE,
    SKILL_SCHEME,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from ..calling.signature import UserFunction
from ..context.request_context import RequestContext, scope_of
from ..options import CacheHints, ResourceOptions, Visible
from .registration import Offer, Registry, depends_on_caller
from .resources import RegisteredResource, Resources

if TYPE_CHECKING:
    from ...runtime.peer import Auth
    from ...skills.folder import SkillSource

_MARKDOWN: Final = "text/markdown"
_FOLDER: Final = "inode/directory"
_TYPES: Final = mimetypes.MimeTypes(filenames=())
"""Python's built-in MIME types, which don't depend on the machine's configuration."""
_PAGE: Final = 100
"""The number of skills in a page if the server has no page size. Pages must be small, because each entry contains the
list of the skill's files."""
_CHANGED: Final = "notifications/resources/list_changed"


@show_fields
class SkillOptions(TypedDict, total=False):
    """Keyword arguments of the `Skills` methods that add skills, such as `Skills.add_folder`."""

    listed: bool
    """If false, the skill isn't listed, but clients that have the URI of its ``SKILL.md`` can get it."""
    scopes: Sequence[str]
    """OAuth scopes that the caller's token must have to get the skill and read its files. See `ResourceOptions`."""
    visible: Visible | None
    """Predicate on the caller that decides whether the skill exists for the caller. See `ResourceOptions`."""
    tags: Sequence[str]
    """Tags for `Server.disable` and `Server.enable`."""


@define(eq=False)
class _OfferedSkill(Offer):
    """A skill that one server offers to its clients."""

    skill: SkillSource
    options: SkillOptions
    file: RegisteredResource
    """The resource options that apply to all files of the skill."""
    scopes: frozenset[str]
    visible: Visible | None
    tags: frozenset[str]


class SkillOffers:
    """The skills that ``server`` offers to its clients.

    ``contents(skill, file)`` returns a file's contents, given the two paths. ``recheck`` waits until changed skill
    folders have been read.
    """

    def __init__(
        self, server: Any, contents: Callable[[str, str], Awaitable[bytes]], recheck: Callable[[], Awaitable[None]]
    ) -> None:
        self._server = server
        self.call_in_run: Callable[[Callable[[], None]], None] = server._active_runs.call_in_run
        """Function that calls a function in the run of trio that serves the server. See `ActiveRuns.call_in_run`."""
        self._contents_of = contents
        self._recheck = recheck
        resources: Resources = server._resources
        self._listed: Registry[_OfferedSkill] = Registry("skill", resources.page_size or _PAGE)
        self._unlisted: Registry[_OfferedSkill] = Registry("skill", None)
        self.registries: tuple[Registry[Any], ...] = (self._listed, self._unlisted)
        """The skills by the path of their folder in URIs. See `UnlistedResources.registries`."""
        resources.unlisted.append(self)

    # What is offered

    def add(self, skill: SkillSource, options: SkillOptions) -> None:
        """Add a skill, and notify clients.

        Raises `ValueError` if the skill's URI is taken or an option is invalid, and `TypeError` for options of the
        wrong type.
        """
        resource = self._resource(skill, options)
        is_listed = options.get("listed", True)
        if is_listed:
            self._server._resources.registry.add(skill.entry.uri, resource)
        path = skill.path

        async def read(uri: str) -> TextResourceContents | BlobResourceContents:
            return await self._contents(path, uri)

        file = attrs.evolve(resource, handler=UserFunction.of(read))
        offer = _OfferedSkill(skill, options, file, file.scopes, file.visible, file.tags)
        (self._listed if is_listed else self._unlisted).add(path, offer)
        if is_listed:
            self._server._observers.list_changed(_CHANGED)

    def remove(self, skill: SkillSource) -> None:
        """Remove a skill, and notify clients."""
        if self._unlisted.known(skill.path) is not None:
            self._unlisted.remove(skill.path)
            return
        self._listed.remove(skill.path)
        self._server._resources.registry.remove(skill.entry.uri)
        self._server._observers.list_changed(_CHANGED)

    def replace(self, before: SkillSource, skill: SkillSource) -> None:
        """Replace the version ``before`` of a skill by the current version, ``skill``.

        Clients are notified that its ``SKILL.md`` changed. They are also notified of each file that differs from the
        version ``before``.
        """
        offer = self._listed.known(skill.path) or cast("_OfferedSkill", self._unlisted.known(skill.path))
        offer.skill = skill
        if self._listed.known(skill.path) is not None:
            resource = self._resource(skill, offer.options)
            registry: Registry[RegisteredResource] = self._server._resources.registry
            old = registry.known(skill.entry.uri)
            if old is None or old.listed != resource.listed:
                registry.remove(skill.entry.uri)
                registry.add(skill.entry.uri, resource)
                self._server._observers.list_changed(_CHANGED)
        files = {**before.files, **skill.files}
        changed = [file.uri for path, file in files.items() if before.files.get(path) != skill.files.get(path)]
        # A skill is identified by its SKILL.md, so a notification about this file covers any change of the skill.
        for uri in dict.fromkeys([skill.entry.uri, *changed]):
            self._server.resource_updated(uri)

    def _resource(self, skill: SkillSource, options: SkillOptions) -> RegisteredResource:
        entry, size = skill.entry, skill.files[SKILL_FILE].size

        async def read() -> TextResourceContents | BlobResourceContents:
            return await self._contents(skill.path, entry.uri)

        # SEP-2640, Resource Metadata
        described: ResourceOptions = {
            "name": entry.name,
            "description": entry.description,
            "mime_type": _MARKDOWN,
            "size": size,
            "scopes": options.get("scopes", ()),
            "visible": options.get("visible"),
            "tags": options.get("tags", ()),
        }
        return RegisteredResource.of(entry.uri, read, described, self._server._cache_hints["resources/read"])

    # Lookup by URI

    def find(self, uri: str, auth: Auth | None, *, disabled: bool = False) -> RegisteredResource | None:
        """Return the file or folder at ``uri`` as a resource.

        If several skills contain this file or folder, use the innermost skill that this caller can see. See
        `UnlistedResources.find`.
        """
        found = next(self._at(uri, auth, disabled=disabled), None)
        return None if found is None else found[0].file

    def _at(self, uri: str, auth: Auth | None, *, disabled: bool = False) -> Iterator[tuple[_OfferedSkill, str]]:
        """Yield each skill that has a file or folder at ``uri``, and the path of this file or folder in the skill. The
        innermost skill comes first.

        The path is empty for the skill's own folder.
        """
        path = _path_of(uri)
        folder, inside = path, ""
        while folder:
            for registry in (self._listed, self._unlisted):
                offer = registry.get_for(auth, folder, disabled=disabled)
                if offer is not None and (not inside or _has(offer.skill, inside)):
                    yield offer, inside
            folder, _, last = folder.rpartition("/")
            inside = f"{last}/{inside}" if inside else last

    async def _contents(self, path: str, uri: str) -> TextResourceContents | BlobResourceContents:
        name = _path_of(uri).removeprefix(f"{path}/")
        return _part(uri, name, await self._contents_of(path, name))

    # Answers

    def _hints(self, method: str, *, is_private: bool) -> CacheHints:
        hints: CacheHints = self._server._cache_hints[method]
        return hints._replace(None, "private" if is_private else None)

    async def answer_list(self, params: PageParams, ctx: RequestContext) -> ListSkillsResult:
        """Return one page of the skills that are listed for the caller, as the result of ``skills/list``."""
        await self._recheck()
        page, following = self._listed.page(params.cursor, scope_of(ctx).exchange.peer)
        hints = self._hints("skills/list", is_private=self._listed.depends_on_caller)
        return ListSkillsResult([offer.skill.entry for offer in page], following, hints.ttl_ms, hints.scope)

    async def answer_get(self, params: GetSkillParams, ctx: RequestContext) -> GetSkillResult:
        """Return one skill, listed or not, as the result of ``skills/get``. Raises `CodedError` (-32602) if the skill
        doesn't exist for the caller."""
        await self._recheck()
        for offer, inside in self._at(params.uri, ctx.auth):
            if inside == SKILL_FILE:
                hints = self._hints("skills/get", is_private=depends_on_caller(offer))
                return GetSkillResult(offer.skill.entry, hints.ttl_ms, hints.scope)
        raise _not_found("This server has no skill", params.uri)

    async def answer_directory(self, params: ReadDirectoryParams, ctx: RequestContext) -> ReadDirectoryResult:
        """Return the files and folders directly in the folder that a directory request names. Raises `CodedError`
        (-32602) if no skill has this folder."""
        await self._recheck()
        if params.cursor is not None:
            raise CodedError(INVALID_PARAMS, "Invalid params: the cursor was not issued for this list")
        for offer, inside in self._at(params.uri, ctx.auth):
            if inside not in offer.skill.files:
                return ReadDirectoryResult(list(_children(offer.skill, inside, params.uri)))
        raise _not_found("This server has no skill folder", params.uri)


def _not_found(what: str, uri: str) -> CodedError:
    shown = uri[:1000]
    return CodedError(INVALID_PARAMS, f"{what} at {shown}", {"uri": shown})


def _path_of(uri: str) -> str:
    """Return the path in a skill URI, percent-decoded. Return an empty string for other URIs, and for URIs that end
    with a slash."""
    path = unquote(uri.removeprefix(SKILL_SCHEME)) if uri.startswith(SKILL_SCHEME) else ""
    return "" if path.endswith("/") else path


def _has(skill: SkillSource, path: str) -> bool:
    """Return whether ``path`` is a file or a folder of ``skill``."""
    return path in skill.files or any(name.startswith(f"{path}/") for name in skill.files)


def _children(skill: SkillSource, folder: str, uri: str) -> Iterator[Resource]:
    """Yield the direct children of ``folder``, a folder of ``skill``. ``uri`` is the folder's URI (SEP-2640, Directory
    Listing)."""
    before = f"{folder}/" if folder else ""
    seen: set[str] = set()
    for path, file in skill.files.items():
        name, slash, _ = path.removeprefix(before).partition("/")
        if not path.startswith(before) or name in seen:
            continue
        seen.add(name)
        if slash:
            yield Resource(f"{uri}/{quote(name)}", name, mime_type=_FOLDER)
        elif path == SKILL_FILE:
            entry = skill.entry
            yield Resource(file.uri, entry.name, None, entry.description, _MARKDOWN, size=file.size)
        else:
            yield Resource(file.uri, name, mime_type=_type_of(name), size=file.size)


def _type_of(name: str) -> str | None:
    return _MARKDOWN if name.endswith(".md") else _TYPES.guess_type(name)[0]


def _part(uri: str, name: str, contents: bytes) -> TextResourceContents | BlobResourceContents:
    """Return ``contents`` as a text resource if they are valid UTF-8 text, otherwise as a blob."""
    kind = _type_of(name)
    try:
        return TextResourceContents(uri, contents.decode(), kind or "text/plain")
    except UnicodeDecodeError:
        blob = base64.b64encode(contents).decode()
        return BlobResourceContents(uri, blob, kind or "application/octet-stream")
