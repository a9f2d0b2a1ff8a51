"""Extensions that a proxy does not know pass unchanged, where nothing of one client can reach another.

An extension is offered to a client, and its declaration is handed to the server behind, only where the messages of the
extension pass, too: where both sides speak the same era, and the connection to the server behind serves this client, or
its principal, alone. Over a connection of several clients only the extensions pass that `SharedExtensions` names. The
extension for apps has no messages, and its metadata pass in any case: so does its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from ..classes import frozen
from ..protocol.cancel_acknowledged import NAME as CANCEL_ACKNOWLEDGED
from ..protocol.extensions import Extension, check_name, vocabulary_of, with_unknown
from ..protocol.methods import METHODS
from ..protocol.types.apps import APPS_EXTENSION
from ..protocol.types.skills import SKILLS_EXTENSION
from ..protocol.types.tools import TASKS_EXTENSION
from ..skills.loading import SKILLS
from .acknowledging import CANCELS

if TYPE_CHECKING:
    from ..protocol.fields import JSONObject
    from ..protocol.revisions import Revision
    from ..protocol.types.lifecycle import ClientCapabilities

_NOTIFICATION_PREFIX: Final = "notifications/"
_KNOWN: Final = (TASKS_EXTENSION, APPS_EXTENSION, SKILLS_EXTENSION, CANCEL_ACKNOWLEDGED)
"""Extensions without methods that are unknown here."""
_OF_ALL: Final = (APPS_EXTENSION, SKILLS_EXTENSION)
"""Extensions that pass in any case."""
SKILLS_METHODS: Final = frozenset(row.name for row in SKILLS.rows)
VOCABULARY: Final = with_unknown(vocabulary_of([SKILLS, CANCELS]))
"""The methods of the specification, those for skills and for calls that were left, and those of extensions that nobody
here knows."""
_OF_VIEWS: Final = "ui/"


@frozen
class SharedExtensions:
    """The extensions that pass over connections of several clients, because the people who run the proxy say so."""

    names: frozenset[str] = frozenset()
    methods: Mapping[str, str] = MappingProxyType({})
    """The extensions that are known with their methods, by the name of each method."""

    @classmethod
    def of(cls, passes: Iterable[str | Extension[Any, Any]]) -> SharedExtensions:
        """Return the extensions, each given by its name or as a whole. Raises `ValueError` for any other text."""
        given = list(passes)
        names = [each if isinstance(each, str) else each.name for each in given]
        for name in names:
            check_name(name)
        known = [each for each in given if not isinstance(each, str)]
        return cls(frozenset(names), {row.name: each.name for each in known for row in each.rows})

    def owner_of(self, method: str) -> str | None:
        """Return the extension that ``method`` belongs to; `None` for none that passes. The methods of an extension
        that is known by its name alone begin with the name, behind ``notifications/`` perhaps."""
        owner = self.methods.get(method)
        if owner is None:
            owner = "/".join(method.removeprefix(_NOTIFICATION_PREFIX).split("/", 2)[:2])
        return owner if owner in self.names else None


NONE_SHARED: Final = SharedExtensions()


def is_unknown(method: str) -> bool:
    """Return whether ``method`` is none of the specification, and may belong to an extension."""
    return method not in METHODS


@frozen
class ExtensionFilter:
    """The extensions that pass between a client and the server behind, which has ``declared`` some, and speaks
    ``behind``. ``is_exclusive``: nobody but the client, or its principal, uses the connection to the server; else only
    ``shared`` ones pass. ``forwards_notifications``: the client of the server behind is here to hand messages on.
    ``passes_tasks`` says whether tasks pass to a client of a revision."""

    declared: Mapping[str, Any]
    behind: Revision
    is_exclusive: bool
    shared: SharedExtensions
    forwards_notifications: bool
    passes_tasks: Callable[[Revision], bool]

    def forwards(self, method: str, revision: Revision) -> bool:
        """Return whether messages of ``method``, which `is_unknown`, pass in either direction, for a client that speaks
        ``revision``. Over a connection of several clients ``method`` must be one of an extension that passes there;
        else the server behind knows its methods, and must have declared an extension."""
        if method in SKILLS_METHODS:
            return SKILLS_EXTENSION in self.declared
        # SEP-1865, Sandbox proxy: what views say to hosts is not for servers.
        if not self._speaks_alike(revision) or method.startswith(_OF_VIEWS):
            return False
        if self.is_exclusive:
            return any(name not in _KNOWN for name in self.declared)
        return self.shared.owner_of(method) in self.declared

    def should_notify(self, method: str, capabilities: Iterable[ClientCapabilities]) -> bool:
        """Return whether a client that has declared ``capabilities`` is to be told of ``method`` outside of any call:
        where others use the connection, too, the client must have declared the extension."""
        owner = self.shared.owner_of(method)
        return self.is_exclusive or any(owner in (each.extensions or {}) for each in capabilities)

    def part_of(self, extensions: JSONObject, revision: Revision) -> JSONObject:
        """Return the part of the ``extensions``, declared by either side, that passes for a client that speaks
        ``revision``; the extension of tasks where tasks pass, and the extension of apps. The proxy itself answers how
        calls end."""
        names = extensions.keys() if self.is_exclusive else self.shared.names
        passing = names if self._speaks_alike(revision) else ()
        tasks = self.passes_tasks(revision)
        return {
            name: settings
            for name, settings in extensions.items()
            if name != CANCEL_ACKNOWLEDGED
            and (tasks if name == TASKS_EXTENSION else name in passing or name in _OF_ALL)
        }

    def with_part(self, capabilities: Any, revision: Revision) -> Any:
        """Return ``capabilities``, plain data of either side, with the `part_of` their extensions. Any other value than
        an object stays unchanged."""
        if not isinstance(capabilities, dict):
            return capabilities
        plain = cast("JSONObject", capabilities)
        declared = plain.get("extensions")
        if not isinstance(declared, dict):
            return plain
        kept = self.part_of(cast("JSONObject", declared), revision)
        if len(kept) == len(cast("JSONObject", declared)):
            return plain
        others = {name: value for name, value in plain.items() if name != "extensions"}
        return {**others, "extensions": kept} if kept else others

    def _speaks_alike(self, revision: Revision) -> bool:
        return self.forwards_notifications and revision.handshake == self.behind.handshake
