"""Skills: the extension by which a server offers instructions and files for models (SEP-2640).

`SkillOffers` is how a server lists its skills, and how clients get and read them: the files of a skill are resources.
Its ``SKILL.md`` is listed among all resources; the others can be read by URI.
"""

from __future__ import annotations

import base64
import logging
import mimetypes
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast
from urllib.parse import quote, unquote

import attrs
import trio

from ...classes import define, show_fields
from ...concurrency.misuse import check_keywords
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.types.content import BlobResourceContents, TextResourceContents
from ...protocol.types.offers import PageParams, Resource
from ...protocol.types.skills import (
    SKILL_FILE,
    SKILL_SCHEME,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from ...skills.folder import SkillSource, check_extra, read_files, read_folder, skill_folders, stamps_of
from ...skills.loading import SkillsExtension
from ..calling.signature import UserFunction
from ..context.request_context import RequestContext, scope_of
from ..options import CacheHints, ResourceOptions, Visible
from .registration import Offer, Registry, depends_on_caller
from .resources import RegisteredResource, ResourceNotFound, Resources

if TYPE_CHECKING:
    from ...runtime.peer import Auth

logger = logging.getLogger("trio_mcp")

_MAX_ATTEMPTS: Final = 3
"""Maximum number of attempts to read a file that changes while it is read."""
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


class Skills(SkillsExtension):
    """The skills extension, ``io.modelcontextprotocol/skills``: instructions and files that a server offers to models.

        server = Server("billing", extensions=[Skills("skills")])

    A skill is a folder with a ``SKILL.md``, which begins with YAML front matter, and further files. It may contain no
    links. Hidden files count. It has at most 512 files and 16 MiB.

    Args:
        folders: Folders that either are skills, as for `add_folder`, or contain skills, as for `add_folders`. They are
            read and hashed when added.
        recheck: Seconds after which the folders are checked for changes again when clients list or get skills.
        directory_read: If false, clients cannot list folders.
        options: Apply to all skills in the folders. See `SkillOptions`.

    SEP-2640 defines the ``name``, the settings of a ``server``, and the settings of a ``client``, which are empty. The
    extension is declared in every revision of the protocol: ``since`` is the first. A host declares the extension too:
    ``open_stdio(command, extensions=[Skills()])``.

    The server sends exactly the bytes that were hashed. A changed folder is read again first: when a file is read, at
    `refresh`, and when clients list or get skills and the last check is ``recheck`` seconds old.

    Raises:
        ValueError: If a folder isn't a valid skill. The text names the file and the rule.
        OSError: If a file cannot be read.
        ImportError: If the extra ``trio-mcp[skills]`` isn't installed.
    """

    def __init__(
        self, *folders: str | Path, directory_read: bool = True, recheck: float = 1.0, **options: Unpack[SkillOptions]
    ) -> None:
        check_extra()
        check_keywords(Skills.__init__, options)
        super().__init__(directory_read=directory_read)
        self._recheck = recheck
        self._skills: dict[str, tuple[SkillSource, SkillOptions]] = {}
        """The skills, by the path of their folder in skill URIs."""
        self._folders: list[_Folder] = []
        self._offers: list[SkillOffers] = []
        self._checked_at = float("-inf")
        self._reload_lock = trio.Lock()
        self._logged = set[str]()
        """Errors in skill folders that have already been logged."""
        for each in folders:
            add = self.add_folder if (Path(each) / SKILL_FILE).exists() else self.add_folders
            add(each, **options)

    def add_folder(self, folder: str | Path, prefix: str = "", **options: Unpack[SkillOptions]) -> None:
        """Add the files in ``folder`` as the skill ``skill://PREFIX/NAME``, and notify clients.

        ``NAME`` must be both the folder's name and the name in the skill's front matter. Raises the errors of the
        constructor, and `ValueError` if the path is taken.
        """
        check_keywords(Skills.add_folder, options)
        self._add_folder(_Folder(Path(folder).absolute(), prefix, holds_skills=False, options=options))

    def add_folders(self, folder: str | Path, prefix: str = "", **options: Unpack[SkillOptions]) -> None:
        """Add each folder with a ``SKILL.md`` anywhere below ``folder`` as a skill.

        The skill's URI contains ``prefix`` and the path of the skill's folder: ``folder/acme/refunds`` becomes
        ``skill://acme/refunds``.

        If skills are added to ``folder`` or removed later, clients see that. Raises the errors of `add_folder`.
        """
        check_keywords(Skills.add_folders, options)
        self._add_folder(_Folder(Path(folder).absolute(), prefix, holds_skills=True, options=options))

    def add_files(
        self, name: str, files: Mapping[str, str | bytes], prefix: str = "", **options: Unpack[SkillOptions]
    ) -> None:
        """Add ``files``, a mapping from paths in the skill to contents, as the skill ``skill://PREFIX/NAME``. See
        `add_folder`."""
        check_keywords(Skills.add_files, options)
        contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        skill = read_files(name, contents, prefix)

        def add() -> None:
            self._check_free([skill.path])
            self._offer(skill, options)

        self._change(add)

    def remove(self, path: str) -> None:
        """Remove the skill with the path ``PREFIX/NAME``, or all skills of a folder that was added, and notify clients.

        Raises `KeyError` if no skill has the path.
        """
        self._change(partial(self._remove, path))

    def _change(self, change: Callable[[], None]) -> None:
        """Run a function that changes the skills, in each run of trio that serves a server with these skills. See
        `ActiveRuns.call_in_run`."""
        for offers in self._offers:
            change = partial(offers.call_in_run, change)
        change()

    def _remove(self, path: str) -> None:
        of_folder = [each for each in self._folders if path in each.paths or path == str(each.folder)]
        self._folders = [each for each in self._folders if each not in of_folder]
        gone = [path for each in of_folder for path in each.paths] or [path]
        for each in gone:
            self._withdraw(each)

    def _add_folder(self, folder: _Folder) -> None:
        found, faults = folder.read({})
        for fault in faults:
            raise fault
        if not found:
            raise ValueError(f"{folder.folder}: no folder contains a {SKILL_FILE}")

        def add() -> None:
            self._check_free(found)
            self._folders.append(folder)
            folder.paths = list(found)
            for skill in found.values():
                self._offer(skill, folder.options)

        self._change(add)

    def _check_free(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self._skills:
                raise ValueError(f"there is already a skill {path!r}")

    def _offer(self, skill: SkillSource, options: SkillOptions) -> None:
        for offers in self._offers:
            offers.add(skill, options)
        self._skills[skill.path] = skill, options

    def _withdraw(self, path: str) -> None:
        skill, _ = self._skills.pop(path)
        for offers in self._offers:
            offers.remove(skill)

    # Changes

    async def refresh(self) -> None:
        """Read the skill folders whose files have changed, and notify clients.

        For each changed skill, clients are notified of its ``SKILL.md``, of each changed file, and of the list. If a
        folder stops being a valid skill, it is removed until it becomes valid again. Once all folders are read, the
        first such error is raised.
        """
        for fault in await self._reload():
            raise fault

    async def _recheck_if_due(self) -> None:
        """Check the skill folders for changes, if the last check is more than ``recheck`` seconds ago. Errors are
        logged."""
        if self._folders and not 0 <= trio.current_time() - self._checked_at < self._recheck:
            for fault in await self._reload():
                if str(fault) not in self._logged:
                    self._logged.add(str(fault))
                    logger.warning("a skill is not offered: %s", fault)

    async def _reload(self, *, anew: str | None = None) -> list[Exception]:
        """Read all skills whose files have changed. Also read the skill at the path ``anew``, even if it's unchanged.

        Return the errors in skill folders.
        """
        faults: list[Exception] = []
        async with self._reload_lock:
            self._checked_at = trio.current_time()
            for folder in tuple(self._folders):
                known = {path: self._skills[path][0] for path in folder.paths if path != anew}
                found, wrong = await trio.to_thread.run_sync(folder.read, known)
                faults += wrong
                if folder in self._folders:
                    faults += self._replace(folder, found)
        if not faults:
            self._logged.clear()
        return faults

    def _replace(self, folder: _Folder, found: dict[str, SkillSource]) -> list[Exception]:
        """Replace the skills that were last read from ``folder`` by the skills ``found`` in it now."""
        faults: list[Exception] = []
        for path in set(folder.paths) - found.keys():
            self._withdraw(path)
        for path, skill in tuple(found.items()):
            if path not in folder.paths:
                try:
                    self._check_free([path])
                    self._offer(skill, folder.options)
                except ValueError as error:
                    faults.append(error)
                    del found[path]
            elif skill is not (before := self._skills[path][0]):
                self._skills[path] = skill, folder.options
                if skill.entry != before.entry:
                    for offers in self._offers:
                        offers.replace(before, skill)
        folder.paths = list(found)
        return faults

    # Methods that the server calls on this extension

    def _register(self, server: Any) -> None:
        """Add the skills to ``server``, which was created with this extension. See `Extension._register`."""
        offers = SkillOffers(server, self._contents, self._recheck_if_due)
        server.handles(self._listing)(offers.answer_list)
        server.handles(self._getting)(offers.answer_get)
        if self._reading is not None:
            server.handles(self._reading)(offers.answer_directory)
        self._offers.append(offers)
        for skill, options in self._skills.values():
            offers.add(skill, options)

    async def _contents(self, path: str, name: str) -> bytes:
        """Return the contents of the file ``name`` of the skill at ``path``. They match the digest that clients get.

        If the file has changed, read the skill again first. Raises `ResourceNotFound` if there is no such file.
        """
        for _ in range(_MAX_ATTEMPTS):
            skill = self._skills[path][0] if path in self._skills else None
            if skill is None or name not in skill.files:
                break
            contents = await trio.to_thread.run_sync(skill.contents_of, name)
            if contents is not None:
                return contents
            await self._reload(anew=path)
        raise ResourceNotFound(f"the skill {path!r} has no file {name!r}")


@define(eq=False)
class _Folder:
    """A folder that is a skill, or contains skills."""

    folder: Path
    prefix: str
    options: SkillOptions = attrs.field(kw_only=True)
    holds_skills: bool = attrs.field(kw_only=True)
    paths: list[str] = attrs.field(factory=list[str], init=False)
    """The paths, in skill URIs, of the skills that were found in this folder."""

    def read(self, known: Mapping[str, SkillSource]) -> tuple[dict[str, SkillSource], list[Exception]]:
        """Read the folder. Return a dict of its skills by path, and a list of errors of invalid skills.

        Unchanged skills are taken from ``known``. Blocks, so call it in a worker thread.
        """
        found: dict[str, SkillSource] = {}
        faults: list[Exception] = []
        try:
            folders = skill_folders(self.folder) if self.holds_skills else [(self.folder, "")]
        except OSError as error:
            return found, [error]
        for folder, between in folders:
            prefix = "/".join(filter(None, (self.prefix, between)))
            path = "/".join(filter(None, (prefix, folder.name)))
            try:
                before = known.get(path)
                is_same = before is not None and stamps_of(folder) == before.stamps
                found[path] = before if before is not None and is_same else read_folder(folder, prefix)
            except (OSError, ValueError) as error:
                faults.append(error)
        return found, faults


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
