"""Decides which unknown extensions a proxy forwards, so that no message of one client reaches another client.

An extension is offered to a client, and its declaration forwarded to the upstream server, only if its messages may pass
as well: both sides must be modern or both legacy, and the upstream connection must serve this client, or its principal,
alone. Over a connection of several clients only the extensions in `SharedExtensions` pass. The extension for apps has
no messages, and its metadata always pass, so its declaration does too.

For `CancelAcknowledged`, the proxy itself reports how its clients' cancelled calls have ended: it waits for its own
part of a call, and for the end of the call at the upstream server, under a token of its own. So neither the eras of
both sides nor the number of clients on a connection matter. An upstream server without the extension gets the cancel,
but can't report.
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
from ..runtime.requests.host import LATER, Decision, Now
from ..skills.loading import SKILLS

if TYPE_CHECKING:
    from ..client.confirming import CallEnding
    from ..protocol.fields import JSONObject
    from ..protocol.revisions import Revision
    from ..protocol.types.lifecycle import ClientCapabilities
    from ..runtime.exchange import Exchange
    from ..runtime.requests.endings import Endings
    from ..runtime.requests.scope import RequestScope
    from ..state.requests import InboundRequest

CANCELS: Final = CancelAcknowledged()
_NOTIFICATION_PREFIX: Final = "notifications/"
_KNOWN: Final = (TASKS_EXTENSION, APPS_EXTENSION, SKILLS_EXTENSION, CANCEL_ACKNOWLEDGED)
"""The extensions that the proxy itself knows. Any other extension may have any methods."""
_OF_ALL: Final = (APPS_EXTENSION, SKILLS_EXTENSION)
"""Extensions that are always forwarded."""
SKILLS_METHODS: Final = frozenset(row.name for row in SKILLS._rows)
VOCABULARY: Final = with_unknown(vocabulary_of([SKILLS, CANCELS]))
"""The methods of the specification, and of the extensions for skills and cancelled calls. Any other method may belong
to an unknown extension."""
_OF_VIEWS: Final = "ui/"


@frozen
class SharedExtensions:
    """The extensions that a proxy forwards even over an upstream connection that several clients share."""

    names: frozenset[str] = frozenset()
    methods: Mapping[str, str] = MappingProxyType({})
    """The forwarded extensions whose methods are known, by the name of each method."""

    @classmethod
    def of(cls, passes: Iterable[str | Extension[Any, Any]]) -> SharedExtensions:
        """Return a `SharedExtensions` for the extensions in ``passes``, a list of extension names or `Extension`
        objects. A proxy forwards only these extensions.

        Raises `ValueError` if a string isn't a valid name of an extension.
        """
        given = list(passes)
        names = [each if isinstance(each, str) else each.name for each in given]
        for name in names:
            check_name(name)
        known = [each for each in given if not isinstance(each, str)]
        return cls(frozenset(names), {row.name: each.name for each in known for row in each._rows})

    def owner_of(self, method: str) -> str | None:
        """Return the name of the allowed extension that defines the method ``method``. Return `None` if no allowed
        extension does.

        For an extension that was allowed by its name, the method must begin with this name, possibly after
        ``notifications/``.
        """
        owner = self.methods.get(method)
        if owner is None:
            owner = "/".join(method.removeprefix(_NOTIFICATION_PREFIX).split("/", 2)[:2])
        return owner if owner in self.names else None


NONE_SHARED: Final = SharedExtensions()


def is_unknown(method: str) -> bool:
    """Return whether ``method`` isn't in the MCP specification. It may then belong to an extension."""
    return method not in METHODS


@frozen
class ExtensionFilter:
    """Decides which extensions are forwarded between one client and the upstream server.

    The server has ``declared`` some extensions, and speaks ``behind``. ``is_exclusive``: only this client, or its
    principal, uses the upstream connection; otherwise only ``shared`` extensions pass. ``forwards_notifications``: the
    upstream client is used for forwarding. ``passes_tasks`` says whether tasks pass to a client of a revision.
    """

    declared: Mapping[str, Any]
    behind: Revision
    is_exclusive: bool
    shared: SharedExtensions
    forwards_notifications: bool
    passes_tasks: Callable[[Revision], bool]

    def forwards(self, method: str, revision: Revision) -> bool:
        """Return whether messages with the unknown ``method`` are forwarded between the upstream server and a client.

        ``revision`` is the protocol revision of the client. Messages are requests and notifications.

        Over a connection of several clients, ``method`` must belong to an extension that passes there. Otherwise the
        upstream server must have declared an extension; it knows its own methods.
        """
        if method in SKILLS_METHODS:
            return SKILLS_EXTENSION in self.declared
        # SEP-1865, Sandbox proxy: messages between views and hosts (``ui/…``) must not be forwarded to servers.
        if not self._speaks_alike(revision) or method.startswith(_OF_VIEWS):
            return False
        if self.is_exclusive:
            return any(name not in _KNOWN for name in self.declared)
        return self.shared.owner_of(method) in self.declared

    def should_notify(self, method: str, capabilities: Iterable[ClientCapabilities]) -> bool:
        """Return whether a client gets notifications of the extension method ``method`` outside of calls.

        ``capabilities`` are those that the client has declared.

        If other clients share the upstream connection, the client must have declared the extension.
        """
        owner = self.shared.owner_of(method)
        return self.is_exclusive or any(owner in (each.extensions or {}) for each in capabilities)

    def part_of(self, extensions: JSONObject, revision: Revision) -> JSONObject:
        """Return the part of ``extensions`` that the proxy forwards for a client with the protocol revision
        ``revision``.

        The client or the upstream server has declared them.

        This includes apps and, if tasks are forwarded, tasks. It excludes `CancelAcknowledged`, which the proxy itself
        handles.
        """
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
        """Return a copy of ``capabilities`` without the extensions that the proxy doesn't forward (see `part_of`).

        ``capabilities`` is JSON data of the client or the upstream server.

        A value that isn't an object is returned unchanged.
        """
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
"""The minimum grace period in seconds. Without a grace period, the call would be cancelled, but the proxy wouldn't wait
for the upstream server's answer."""
_CAPABILITY: Final = f"extensions.{CANCEL_ACKNOWLEDGED}"


def with_cancels(extensions: JSONObject | None, request: InboundRequest) -> JSONObject | None:
    """Return ``extensions``, which the proxy forwards from the upstream server. If the client has declared
    `CancelAcknowledged`, add it.

    The proxy itself handles `CancelAcknowledged`.
    """
    if request.missing((_CAPABILITY,)):
        return extensions
    return {**(extensions or {}), **declared_in(request.revision, [CANCELS], "server")}


def cancel_abandoned(request: InboundRequest, exchange: Exchange, endings: Endings) -> Decision:
    """Handle ``request`` of the extension `CancelAcknowledged`: cancel the call that ``request`` names.

    Returns the response if that call has already ended. Raises `CapabilityMissing` if the client hasn't declared the
    extension.
    """
    if missing := request.missing((_CAPABILITY,)):
        raise CapabilityMissing(missing, request.revision)
    found = endings.cancel(request, exchange.peer.principal)
    return LATER if found is None else Now(found)


@contextmanager
def asking_behind(scope: RequestScope) -> Generator[None]:
    """If a call to the upstream server is cancelled inside the ``with`` block, request from that server how the call
    has ended.

    The client of ``scope`` must have declared the extension `CancelAcknowledged`.

    Waiting for the answer is part of the cleanup of ``scope``: `Limits.cleanup_grace` and `CancelAcknowledged.max_wait`
    limit it.
    """
    ending = scope.ending
    if ending is None:
        yield
        return
    within = min(max(scope.runner.limits.cleanup_grace, _LEAST_WAIT), CANCELS.max_wait)
    with confirm_cancels(within=within) as endings:
        try:
            yield
        except BaseException as error:
            if endings:
                if endings[-1].state != "unsent":  # a call that wasn't sent never ran, so there is nothing to report
                    ending.note_behind(_reported_state(endings[-1]))
            elif isinstance(error, PeerError):
                ending.note_behind(CancelResult("finished", outcome="error", behind="finished"))
            elif isinstance(error, Exception):  # the call failed without a response, so its handler may still run
                ending.note_behind(CancelResult("relayed"))
            raise
    ending.note_behind(CancelResult("finished", outcome="result", behind="finished"))


def _reported_state(ending: CallEnding) -> CancelResult:
    """Return how a cancelled call has ended, as reported by the upstream server.

    If that server didn't report an end, the state is "relayed".
    """
    if ending.state not in CANCEL_STATES:  # the upstream server hasn't reported how the call ended
        return CancelResult("relayed")
    return CancelResult(ending.state, outcome=ending.outcome, behind=ending.state)
