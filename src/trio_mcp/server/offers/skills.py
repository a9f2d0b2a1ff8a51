"""Skills: the extension with which a server offers instructions and files for models (SEP-2640)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack

import attrs
import trio

from ...classes import define
from ...concurrency.misuse import check_keywords
from ...protocol.types.skills import SKILL_FILE
from ...skills.folder import SkillSource, check_extra, read_files, read_folder, skill_folders, stamps_of
from ...skills.loading import SkillsExtension
from .resources import ResourceNotFound
from .skill_offers import SkillOffers, SkillOptions

logger = logging.getLogger("trio_mcp")

_MAX_ATTEMPTS: Final = 3
"""Times that a file is read which changes all the time."""


class Skills(SkillsExtension):
    """The extension for skills, ``io.modelcontextprotocol/skills``, with the skills of a server.

        server = Server("billing", extensions=[Skills("skills")])

    A skill is a folder with a ``SKILL.md``, which begins with front matter in YAML, and with further files. Each of the
    ``folders`` is a skill, as for `add_folder`, or holds skills, as for `add_folders`; ``options``, see `SkillOptions`,
    are for all skills of the folders. Folders are read and hashed when added. Nothing in a skill is a link, hidden
    files count, and a skill has at most 512 files, and 16 MiB.

    Exactly the hashed bytes are served. A folder that has changed is read again first: when a file is read, at
    `refresh`, and, where the last look is ``recheck`` seconds old, when clients list or get skills.
    ``directory_read=False``: clients cannot list folders. A host declares the extension, too:
    ``open_stdio(command, extensions=[Skills()])``. The ``name`` of the extension, the settings of a ``server`` and
    those of a ``client``, which are empty, are those of SEP-2640.

    Raises `ValueError`, which names the file and the rule, for what is no skill, `OSError` for what cannot be read, and
    `ImportError` without the extra ``trio-mcp[skills]``.
    """

    def __init__(
        self,
        *folders: str | Path,
        directory_read: bool = True,
        recheck: float = 1.0,
        **options: Unpack[SkillOptions],
    ) -> None:
        check_extra()
        check_keywords(Skills.__init__, options)
        super().__init__(directory_read=directory_read)
        self._recheck = recheck
        self._skills: dict[str, tuple[SkillSource, SkillOptions]] = {}
        """The skills by the paths of their folders in URIs."""
        self._folders: list[_Folder] = []
        self._offers: list[SkillOffers] = []
        self._checked_at = float("-inf")
        self._reload_lock = trio.Lock()
        self._logged = set[str]()
        """Faults of folders that were logged."""
        for each in folders:
            add = self.add_folder if (Path(each) / SKILL_FILE).exists() else self.add_folders
            add(each, **options)

    def add_folder(self, folder: str | Path, prefix: str = "", **options: Unpack[SkillOptions]) -> None:
        """Offer ``folder`` as the skill ``skill://PREFIX/NAME``, where ``NAME`` is the name of the folder and in its
        front matter. Clients are told. Raises as the class, and for a path that is taken."""
        check_keywords(Skills.add_folder, options)
        self._add_folder(_Folder(Path(folder).absolute(), prefix, holds_skills=False, options=options))

    def add_folders(self, folder: str | Path, prefix: str = "", **options: Unpack[SkillOptions]) -> None:
        """Offer each folder with a ``SKILL.md`` below ``folder``, however deep, as a skill whose prefix is ``prefix``
        and the path in between: ``folder/acme/refunds`` is ``skill://acme/refunds``. Skills that come to ``folder`` or
        go from it later come and go here, too. See `add_folder`."""
        check_keywords(Skills.add_folders, options)
        self._add_folder(_Folder(Path(folder).absolute(), prefix, holds_skills=True, options=options))

    def add_files(
        self, name: str, files: Mapping[str, str | bytes], prefix: str = "", **options: Unpack[SkillOptions]
    ) -> None:
        """Offer ``files``, contents by their paths in the skill, as the skill ``skill://PREFIX/NAME``. See
        `add_folder`."""
        check_keywords(Skills.add_files, options)
        contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        skill = read_files(name, contents, prefix)

        def add() -> None:
            self._check_free([skill.path])
            self._offer(skill, options)

        self._change(add)

    def remove(self, path: str) -> None:
        """Withdraw the skill with this path, ``PREFIX/NAME``, or all of the folder that was added. Clients are told.
        Raises `KeyError` where there is none."""
        self._change(partial(self._remove, path))

    def _change(self, change: Callable[[], None]) -> None:
        """Make a change in the trio run of the servers that offer the skills. See `ActiveRuns.call_in_run`."""
        for offers in self._offers:
            change = partial(offers.active_runs.call_in_run, change)
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
            raise ValueError(f"{folder.folder}: there is no folder with a {SKILL_FILE}")

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
                raise ValueError(f"there is a skill {path!r} already")

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
        """Read the folders that have changed, and tell clients: of the ``SKILL.md`` of each skill that has changed,
        whichever of its files it was, of that file, and of the list. A folder that is no skill any more is withdrawn
        until it is one again; the first of these faults is raised, once all folders are read."""
        for fault in await self._reload():
            raise fault

    async def _recheck_if_due(self) -> None:
        """Look for changes where the last look is old enough. Faults are logged."""
        if self._folders and not 0 <= trio.current_time() - self._checked_at < self._recheck:
            for fault in await self._reload():
                if str(fault) not in self._logged:
                    self._logged.add(str(fault))
                    logger.warning("a skill is not offered: %s", fault)

    async def _reload(self, *, anew: str | None = None) -> list[Exception]:
        """Read what has changed, and the skill ``anew`` in any case. Return what is wrong with folders."""
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
        """Offer what was ``found`` in the place of what was there."""
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

    # What a server offers

    def _register(self, server: Any) -> None:
        """Offer the skills on ``server``: see `Extension._register`."""
        offers = SkillOffers(server, self._contents, self._recheck_if_due)
        server.handles(self._listing)(offers.answer_list)
        server.handles(self._getting)(offers.answer_get)
        if self._reading is not None:
            server.handles(self._reading)(offers.answer_directory)
        self._offers.append(offers)
        for skill, options in self._skills.values():
            offers.add(skill, options)

    async def _contents(self, path: str, name: str) -> bytes:
        """Return the file ``name`` of the skill at ``path``, the bytes that its entry tells of: after a change the
        entry is made anew first. Raises `ResourceNotFound`."""
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
    """A folder that is a skill, or holds skills."""

    folder: Path
    prefix: str
    options: SkillOptions = attrs.field(kw_only=True)
    holds_skills: bool = attrs.field(kw_only=True)
    paths: list[str] = attrs.field(factory=list[str], init=False)
    """The paths of its skills in URIs."""

    def read(self, known: Mapping[str, SkillSource]) -> tuple[dict[str, SkillSource], list[Exception]]:
        """Return the skills by their paths, those that are ``known`` and have not changed as they are, and what is
        wrong with others. For a worker thread."""
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
