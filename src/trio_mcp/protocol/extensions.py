"""`Extension`: a protocol extension (SEP-2133), with methods of its own that client and server agree on.

An extension is data, and the same object is used by both sides. Its handlers are registered where a server or a client
is created. `vocabulary_of` adds the methods of extensions to those of the specification. `with_unknown` also adds the
methods of unknown extensions.
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
from .meta import NAME, PREFIX, reserved_label
from .methods import METHODS, Method, Sender
from .revisions import CORE, LATEST_MODERN, REVISIONS, Revision, Rows, Vocabulary

if TYPE_CHECKING:
    # Import typing_extensions only for type checkers, which always have it. At run time it may be missing.
    from typing_extensions import TypeVar as TypeVarWithDefault

    S = TypeVarWithDefault("S", default=JSONObject)
    C = TypeVarWithDefault("C", default=JSONObject)
else:
    # At run time, omit the defaults of the type variables, because defaults require Python 3.13.
    S, C = TypeVar("S"), TypeVar("C")

logger = logging.getLogger("trio_mcp")

P = TypeVar("P")
R = TypeVar("R")
M = TypeVar("M", bound=Method)

_NAME: Final = re.compile(f"{PREFIX}/{NAME}")
"""Pattern of an extension's name: a mandatory prefix of labels, and a name (SEP-2133, Definition)."""
_OURS: Final = __name__.partition(".")[0]


def check_name(name: str) -> None:
    """Raise `ValueError` if ``name`` isn't a valid extension name."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is not a valid name of an extension: write a reversed domain, a slash and a name, as in "
            "com.example/search (SEP-2133)"
        )


@frozen(eq=False)
class ExtensionRequest(Method, Generic[P, R]):
    """A request method of an extension, created by `Extension.method`.

    ``P`` is the class of its parameters, and ``R`` the class of its result. Compared by identity.
    """


@frozen(eq=False)
class ExtensionNotification(Method, Generic[P]):
    """A notification method of an extension, created by `Extension.notification`.

    ``P`` is the class of its parameters. Compared by identity.
    """


@define(eq=False)
class Extension(Generic[S, C]):
    """A protocol extension with its own methods and settings, for servers and clients (SEP-2133).

        search = Extension("com.example/search", server=SearchSettings(max_hits=100))
        query = search.method("com.example/search/query", Query, Hits)

    ``name`` consists of a prefix (preferably the author's reversed domain), a slash and a name. ``server`` and
    ``client`` are the settings that each side declares: an instance of an attrs class, or a dict. The settings of the
    other side are read as an instance of the same class. ``since`` is the first revision in which the extension is
    declared. JSON members are written in camelCase: ``max_hits`` becomes ``maxHits``.

    A breaking change needs a new name (SEP-2133). Raises `ValueError` if the name is malformed, or reserved for the
    authors of the specification.
    """

    name: str
    """Name of the extension: a prefix, a slash and a name, like ``com.example/search``."""
    server: S = attrs.field(factory=cast("Any", dict), kw_only=True)
    """Settings that servers declare: an instance of an attrs class, or a dict."""
    client: C = attrs.field(factory=cast("Any", dict), kw_only=True)
    """Settings that clients declare: an instance of an attrs class, or a dict."""
    since: str = attrs.field(default="2024-11-05", kw_only=True, validator=attrs.validators.in_(REVISIONS))
    """The first protocol revision in which the extension is declared."""
    _rows: list[Method] = attrs.field(factory=list[Method], init=False)
    """The methods and notifications of the extension."""
    _has_logged: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        check_name(self.name)
        # SEP-2133, Definition: names with "modelcontextprotocol" or "mcp" as their second label are reserved.
        is_ours = type(self) is not Extension and type(self).__module__.startswith(f"{_OURS}.")
        if reserved_label(self.name.partition("/")[0]) is not None and not is_ours:
            raise ValueError(f"{self.name!r} is reserved for extensions of the specification: use your own domain")

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
        """Declare a request method of this extension. Pass the returned object to `Server.handles` and
        `Client.request`.

        Args:
          params: an attrs class, or ``dict[str, Any]``.
          result: an attrs class, or ``dict[str, Any]``.
          sender: the side that sends the request. Servers can send requests only in legacy revisions.
          since: the first revision that has the method.
          until: the last revision that has the method.
          may_ask: whether the handler may return `InputRequired`.
          cacheable: whether clients may cache results, see `Server.cache`.
          requires_client: refuse clients that haven't declared the extension (-32021; -32600 in legacy revisions).
          scopes: the scopes that a caller needs, if the server requires tokens.

        Raises:
          ValueError: the specification or this extension already has the method.
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
        return self._added(row)

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
        """Declare a notification method of this extension.

        Pass the returned object to `RequestContext.send_notification`, `Client.send_notification` and `Server.handles`.

        Args:
          params: see `method`.
          sender: see `method`.
          since: see `method`.
          until: see `method`.
          of_request: whether the notification belongs to a request in flight. It is then delivered in order with the
              log messages of that request, and ends with it.
          requires_client: ignore the notification if the client hasn't declared the extension in its handshake. Modern
              clients declare nothing in notifications, so theirs are accepted.
          scopes: see `method`.

        Raises:
          ValueError: see `method`.
        """
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
        return self._added(row)

    def _added(self, row: M) -> M:
        if row.name in METHODS:
            raise ValueError(f"the extension {self.name} can't declare {row.name}: it is a method of MCP itself")
        if any(row.name == other.name for other in self._rows):
            raise ValueError(f"the extension {self.name} declares the method {row.name} twice")
        self._rows.append(row)
        return row

    def _register(self, server: Any) -> None:
        """Register the extension's own handlers on ``server``, a `Server` that is being created.

        The default does nothing, because the author of a server registers handlers with `Server.handles`.
        """

    def _check(self, server: Any) -> None:
        """Raise `RuntimeError` if ``server`` has a feature that this extension doesn't allow.

        ``server`` is about to start. The default does nothing.
        """

    def _settings_in(self, declared: Mapping[str, Any] | None, role: Literal["client", "server"]) -> Any:
        """Return the settings for this extension in ``declared``, which the other side has sent.

        They are an instance of the class of `server` or `client`, depending on the other side's ``role``. Return `None`
        if the extension isn't declared. Invalid settings count as not declared, and are logged once.
        """
        found = None if declared is None else declared.get(self.name)
        if found is None:
            return None
        kind: Any = type(self.client if role == "client" else self.server)
        try:
            return structure(found, dict[str, Any] if kind is dict else kind)
        except ValueError as error:
            if not self._has_logged:
                self._has_logged = True
                logger.warning("invalid settings of the extension %s: %s", self.name, clean(str(error)[:200]))
            return None


def vocabulary_of(extensions: Collection[Extension[Any, Any]]) -> Vocabulary:
    """Return the methods that the specification and ``extensions`` define.

    Raises `ValueError` if two extensions have the same name or method.
    """
    if not extensions:
        return CORE
    names = [extension.name for extension in extensions]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"extensions= contains the extension {min(twice)} twice")
    rows: dict[str, Method] = {}
    for row in (row for extension in extensions for row in extension._rows):
        if row.name in rows:
            raise ValueError(f"two extensions declare the method {row.name}")
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
"""Maximum number of characters of the name of an unknown method."""


class _RowsAndUnknown(Mapping[str, Method]):
    """A mapping that has a `Method` object for any method name.

    For a name that is neither in ``known`` nor in the specification, the object is created when needed.
    """

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
    """Return a copy of ``vocabulary`` that also accepts the methods of all unknown extensions. Programs that forward
    messages need it.

    Either side may send them, as requests or notifications. Their names can have up to 256 characters.
    """

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
"""The methods of the specification, and the methods of unknown extensions."""


def declared_in(
    revision: Revision, extensions: Collection[Extension[Any, Any]], role: Literal["client", "server"]
) -> JSONObject:
    """Return the settings that a client or server declares for ``extensions`` in the protocol revision ``revision``,
    keyed by extension name.

    ``role`` is ``client`` or ``server``.
    """
    return {
        each.name: unstructure(each.client if role == "client" else each.server, LATEST_MODERN)
        for each in extensions
        if each.since <= revision.name
    }
