"""Skills: the extension by which a server offers instructions and files for models (SEP-2640)."""

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
"""Maximum number of attempts to read a file that changes while it is read."""


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
