"""Extensions that a proxy does not know pass unchanged, where nothing of one client can reach another.

An extension is offered to a client, and its declaration is handed to the server behind, only where the messages of the
extension pass, too: where both sides speak the same era, and the connection to the server behind serves this client, or
its principal, alone. Over a connection of several clients only the extensions pass that `SharedExtensions` names. The
extension for apps has no messages, and its metadata pass in any case: so does its declaration.

The proxy answers for itself how calls end that its clients have left (`CancelAcknowledged`): it waits for its own part
of a call, and for the end of the call at the server behind, under a token of its own, so that neither the eras of both
sides nor the number of clients on a connection matter. A server behind without the extension was told, and cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from ..classes import frozen
from ..client.confirming import confirm_cancels
from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import PeerError
from ..protocol.cancel_acknowledged import CANCEL_STATES, CancelAcknowledged, CancelResult
from ..protocol.cancel_acknowledged import NAME as CANCEL_ACKNOWLEDGED
from ..protocol.errors import CapabilityMissing
from ..protocol.extensions import Extension, check_name, declared_in, vocabulary_of, with_unknown
from ..protocol.methods import METHODS
from ..protocol.types.apps import APPS_EXTENSION
from ..protocol.types.skills import SKILLS_EXTENSION
from ..protocol.types.tools import TASKS_EXTENSION
from ..runtime.requests.endings import Endings
from ..runtime.requests.host import LATER, Decision, Now, RequestHost
from ..skills.loading import SKILLS

if TYPE_CHECKING:
    from ..client.confirming import CallEnding
    from ..protocol.fields import JSONObject
    from ..protocol.revisions import Revision
    from ..protocol.types.lifecycle import ClientCapabilities
    from ..runtime.exchange import Exchange
    from ..runtime.requests.scope import RequestScope
    from ..state.requests import InboundRequest

CANCELS: Final = CancelAcknowledged()
_NOTIFICATION_PREFIX: Final = "notifications/"
_KNOWN: Final = (TASKS_EXTENSION, APPS_EXTENSION, SKILLS_EXTENSION, CANCEL_ACKNOWLEDGED)
"""Extensions without methods that are unknown here."""
_OF_ALL: Final = (APPS_EXTENSION, SKILLS_EXTENSION)
"""Extensions that pass in any case."""
SKILLS_METHODS: Final = frozenset(row.name for row in SKILLS._rows)
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
        return cls(frozenset(names), {row.name: each.name for each in known for row in each._rows})

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


_LEAST_WAIT: Final = 0.001
"""Seconds: without any grace, the call is told to stop, and nobody waits for the answer."""
_CAPABILITY: Final = f"extensions.{CANCEL_ACKNOWLEDGED}"


def remember_endings(host: RequestHost) -> None:
    """Have ``host`` remember how the calls of its clients end."""
    host.endings = Endings(host.alarms, host.limits, CANCELS.max_wait)


def with_cancels(extensions: JSONObject | None, request: InboundRequest) -> JSONObject | None:
    """Return the ``extensions`` of the server behind that pass, and, for a client that has it, the one that the proxy
    answers for itself."""
    if request.missing((_CAPABILITY,)):
        return extensions
    return {**(extensions or {}), **declared_in(request.revision, [CANCELS], "server")}


def cancel_abandoned(request: InboundRequest, exchange: Exchange, host: RequestHost) -> Decision:
    """Cancel the call that ``request`` asks about, and answer where the call is over. Raises `CapabilityMissing` for a
    client that has not declared the extension."""
    if missing := request.missing((_CAPABILITY,)):
        raise CapabilityMissing(missing, request.revision)
    assert host.endings is not None, "a proxy remembers endings"
    found = host.endings.cancel(request, exchange.peer.principal)
    return LATER if found is None else Now(found)


async def wait_for_call_end(scope: RequestScope, host: RequestHost) -> JSONObject:
    """Wait for the end of the call that the request of ``scope`` asks about, and return how the call ended."""
    assert host.endings is not None, "a proxy remembers endings"
    return await host.endings.over(scope.request, scope.exchange.peer.principal)


@contextmanager
def asking_behind(scope: RequestScope) -> Generator[None]:
    """Ask the server behind how the calls of the body end, if they are left, where the client of ``scope`` may ask. The
    wait is a part of the cleanup of ``scope``, bounded by `Limits.cleanup_grace` and `CancelAcknowledged.max_wait`."""
    ending = scope.ending
    if ending is None:
        yield
        return
    within = min(max(scope.runner.limits.cleanup_grace, _LEAST_WAIT), CANCELS.max_wait)
    with confirm_cancels(within=within) as endings:
        try:
            yield
        except BaseException as error:
            if not endings and isinstance(error, PeerError):
                ending.note_behind(CancelResult("finished", outcome="error", behind="finished"))
            elif endings and endings[-1].state != "unsent":  # what was never sent is over with the proxy's own part
                ending.note_behind(_reported_state(endings[-1]))
            raise
    ending.note_behind(CancelResult("finished", outcome="result", behind="finished"))


def _reported_state(ending: CallEnding) -> CancelResult:
    """Return the state of a call that is over here, and ended so at the server behind."""
    if ending.state not in CANCEL_STATES:  # the server behind did not say
        return CancelResult("relayed")
    return CancelResult(ending.state, outcome=ending.outcome, behind=ending.state)
