"""Extension: an agreement of two sides besides the specification (SEP-2133), with methods of its own.

An extension is data, and the same object serves both roles: its handlers are registered where a server or a client is
made. `vocabulary_of` adds its rows to the rows of the specification; `with_unknown` adds the methods of extensions that
nobody here knows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

import attrs

from ..classes import define, frozen
from ..jsonrpc.errors import clean
from .converters import structure, unstructure
from .fields import JSONObject
from .methods import METHODS, Method, Sender
from .revisions import CORE, LATEST_MODERN, REVISIONS, Revision, Rows, Vocabulary

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # type checkers bring it along

    S = TypeVarWithDefault("S", default=JSONObject)
    C = TypeVarWithDefault("C", default=JSONObject)
else:
    S, C = TypeVar("S"), TypeVar("C")  # a default is there from Python 3.13 on, and nothing reads it

logger = logging.getLogger("trio_mcp")

P = TypeVar("P")
R = TypeVar("R")

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""SEP-2133, Definition: a mandatory prefix of labels, and a name."""
_OFFICIAL: Final = ("modelcontextprotocol", "mcp")
"""Second labels of prefixes that are reserved for the authors of the specification."""
_OURS: Final = __name__.partition(".")[0]


def check_name(name: str) -> None:
    """Raise `ValueError` for a text that is no name of an extension."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is no name of an extension, which is the reversed name of a domain, a slash and a name, as in "
            "com.example/search (SEP-2133)"
        )


@frozen(eq=False)
class ExtensionRequest(Method, Generic[P, R]):
    """A request of an extension, with parameters of class ``P`` and a result of class ``R``. Compared by identity. Made
    by `Extension.method`."""


@frozen(eq=False)
class ExtensionNotification(Method, Generic[P]):
    """A notification of an extension, with parameters of class ``P``. Compared by identity. Made by
    `Extension.notification`."""


@define(eq=False)
class Extension(Generic[S, C]):
    """An extension of the protocol, for servers and for clients.

        search = Extension("com.example/search", server=SearchSettings(max_hits=100))
        query = search.method("com.example/search/query", Query, Hits)

    ``name`` is a prefix, best the reversed name of a domain of its author, a slash and a name. ``server`` and
    ``client`` are the settings that each side declares: an object of an attrs class, or a dict; the settings of the
    other side are read as an object of the same class. ``since`` is the first revision in which the extension is
    declared. Members in JSON are written in camelCase: ``max_hits`` is ``maxHits``.

    A breaking change takes a new name (SEP-2133). Raises `ValueError` for a name that is malformed, or reserved for the
    authors of the specification.
    """

    name: str
    server: S = attrs.field(factory=cast("Any", dict), kw_only=True)
    client: C = attrs.field(factory=cast("Any", dict), kw_only=True)
    since: str = attrs.field(default="2024-11-05", kw_only=True, validator=attrs.validators.in_(REVISIONS))
    _rows: list[Method] = attrs.field(factory=list[Method], init=False)
    """The methods and notifications of the extension."""
    _has_logged: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        check_name(self.name)
        labels = self.name.partition("/")[0].lower().split(".")
        # SEP-2133, Definition: a second label "modelcontextprotocol" or "mcp" is reserved.
        is_ours = type(self) is not Extension and type(self).__module__.startswith(f"{_OURS}.")
        if len(labels) > 1 and labels[1] in _OFFICIAL and not is_ours:
            raise ValueError(f"{self.name!r} is reserved for extensions of the specification: take a domain of yours")

    def method(
        self,
        name: str,
        params: type[P],
        result: type[R],
        *,
        sender: Sender = "client",
        since: str | None = None,
        until: str | None = None,
        may_ask: bool = False,
        cacheable: bool = False,
        requires_client: bool = True,
        scopes: Iterable[str] = (),
    ) -> ExtensionRequest[P, R]:
        """Declare a request, and return it, to be given to `Server.handles` and `Client.request`.

        ``params`` and ``result`` are attrs classes or ``dict[str, Any]``. ``sender``: who sends the request; servers
        send requests in legacy revisions alone. ``since`` and ``until``: the first and last revision with the method.
        ``may_ask``: the handler may return `InputRequired`. ``cacheable``: clients may keep results, as `Server.cache`
        says. ``requires_client``: clients that have not declared the extension are refused (-32021; -32600 in legacy
        revisions). ``scopes`` are needed by a request, where callers are authorized.

        Raises `ValueError` for a method of the specification, and for one that the extension has already.
        """
        row = ExtensionRequest[P, R](
            name,
            sender,
            params,
            result,
            since or self.since,
            until,
            may_ask,
            cacheable,
            extension=self.name,
            requires_client=requires_client,
            scopes=frozenset(scopes),
        )
        self._add(row)
        return row

    def notification(
        self,
        name: str,
        params: type[P],
        *,
        sender: Sender = "server",
        since: str | None = None,
        until: str | None = None,
        of_request: bool = False,
        requires_client: bool = True,
        scopes: Iterable[str] = (),
    ) -> ExtensionNotification[P]:
        """Declare a notification, and return it, to be given to `RequestContext.send_notification`,
        `Client.send_notification` and `Server.handles`. ``of_request``: the notification belongs to a request in
        flight, is told in order with the logs of that request, and ends with the request. ``requires_client``: the
        notification of a client that has not declared the extension in its handshake is ignored; modern clients declare
        nothing in notifications, and are heard. ``scopes``: see `method`. Raises as `method`."""
        row = ExtensionNotification[P](
            name,
            sender,
            params,
            None,
            since or self.since,
            until,
            of_request=of_request,
            extension=self.name,
            requires_client=requires_client,
            scopes=frozenset(scopes),
        )
        self._add(row)
        return row

    def _add(self, row: Method) -> None:
        if row.name in METHODS:
            raise ValueError(f"{row.name} is a method of the specification, not of {self.name}")
        if any(row.name == other.name for other in self._rows):
            raise ValueError(f"{self.name} has {row.name} already")
        self._rows.append(row)

    def _register(self, server: Any) -> None:
        """Register the handlers that the extension brings along on ``server``, a `Server` that is being made. Does
        nothing here: the handlers of most extensions are registered by `Server.handles`."""

    def _check(self, server: Any) -> None:
        """Raise `RuntimeError` where ``server``, which is about to start, offers what the extension does not allow.
        Allows everything here."""

    def _settings_in(self, declared: Mapping[str, Any] | None, role: Literal["client", "server"]) -> Any:
        """Return the settings that the other side, of this ``role``, has ``declared`` among its extensions, as an
        object of the class of `server` or `client`; `None` where the extension is not declared. What does not fit is no
        declaration, and is logged once."""
        found = None if declared is None else declared.get(self.name)
        if found is None:
            return None
        kind: Any = type(self.client if role == "client" else self.server)
        try:
            return structure(found, dict[str, Any] if kind is dict else kind)
        except ValueError as error:
            if not self._has_logged:
                self._has_logged = True
                logger.warning("the settings of the extension %s make no sense: %s", self.name, clean(str(error)[:200]))
            return None


def vocabulary_of(extensions: Collection[Extension[Any, Any]]) -> Vocabulary:
    """Return the methods of the specification and of ``extensions``. Raises `ValueError` for two extensions of a name,
    and for a method that two of them have."""
    if not extensions:
        return CORE
    names = [extension.name for extension in extensions]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the extension {min(twice)} is given twice")
    rows: dict[str, Method] = {}
    for row in (row for extension in extensions for row in extension._rows):
        if row.name in rows:
            raise ValueError(f"two extensions have the method {row.name}")
        rows[row.name] = row
    requests = {name: row for name, row in rows.items() if row.is_request}
    notifications = {name: row for name, row in rows.items() if not row.is_request}
    return Vocabulary(
        _with(CORE.requests_of, requests), _with(CORE.notifications_of, notifications), CORE.names | rows.keys()
    )


def _with(core: Rows, rows: Mapping[str, Method]) -> Rows:
    @cache
    def rows_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
        has = {name: row for name, row in rows.items() if row.sent_by(role) and row.is_in(revision.name)}
        return {**core(role, revision), **has}

    return rows_of


LONGEST_METHOD: Final = 256
"""Characters of the longest name of a method that nobody here knows."""


class _RowsAndUnknown(Mapping[str, Method]):
    """The rows ``known``, and a row for every other name of a method that is not in the specification."""

    def __init__(self, known: Mapping[str, Method], result: Any) -> None:
        self._known = known
        self._result = result

    def __getitem__(self, name: str) -> Method:
        found = self._known.get(name)
        if found is not None:
            return found
        if name in METHODS or len(name) > LONGEST_METHOD:
            raise KeyError(name)
        return Method(name, "both", dict[str, Any], self._result, may_ask=self._result is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def with_unknown(vocabulary: Vocabulary) -> Vocabulary:
    """Return ``vocabulary`` with the methods of all other extensions, up to 256 characters long: either side may send
    them as requests and as notifications, with an object as parameters and as result. For code that hands messages
    on."""

    def and_unknown(rows: Rows, result: Any) -> Rows:
        @cache
        def rows_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
            return _RowsAndUnknown(rows(role, revision), result)

        return rows_of

    return Vocabulary(
        and_unknown(vocabulary.requests_of, dict[str, Any]),
        and_unknown(vocabulary.notifications_of, None),
        vocabulary.names,
    )


UNKNOWN: Final = with_unknown(CORE)
"""The methods of the specification, and the methods of extensions that nobody here knows."""


def declared_in(
    revision: Revision, extensions: Collection[Extension[Any, Any]], role: Literal["client", "server"]
) -> JSONObject:
    """Return what a side of this ``role`` declares of ``extensions`` in ``revision``: settings by name."""
    return {
        each.name: unstructure(each.client if role == "client" else each.server, LATEST_MODERN)
        for each in extensions
        if each.since <= revision.name
    }
