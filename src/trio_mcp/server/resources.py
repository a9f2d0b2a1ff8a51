"""Resources and resource templates: registration, ``resources/read``, and matching of URIs against templates.

The templates are those of RFC 6570 with simple ``{name}`` and reserved ``{+name}`` expressions.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote_to_bytes

import attrs

from ..classes import frozen
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import INVALID_PARAMS, CodedError, MCPError, NotSerializable, UnsendableResult
from ..protocol.converters import structure_params
from ..protocol.fields import JSONObject
from ..protocol.meta import check_meta_keys
from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    TextResourceContents,
)
from ..protocol.types.input_required import InputRequiredResult
from ..protocol.types.resources import ReadResourceParams, ReadResourceResult, Resource, ResourceTemplate
from ..runtime.peer import Auth
from ..runtime.requests.scope import RequestScope
from .input_required import FINISHED, InputRequired, settle
from .registration import CacheHints, Registry, ResourceOptions, check_apps
from .results import media_kinds, to_plain
from .signature import BadArguments, UserFunction
from .visibility import Visible, checked_scopes, checked_tags, checked_visible, depends_on_caller

if TYPE_CHECKING:
    from ..protocol.types.apps import AppPolicy
    from .encoders import Encoders


class ResourceNotFound(MCPError):
    """Raised by a resource handler for a URI that names nothing. The answer has the code of the request's revision:
    -32002 in legacy revisions, -32602 in modern revisions."""


@frozen(eq=False)
class RegisteredResource:
    """A resource under one URI, or, with a ``pattern``, a family of resources, with the function that reads one."""

    listed: Resource | ResourceTemplate
    handler: UserFunction
    hints: CacheHints
    scopes: frozenset[str]
    visible: Visible | None
    tags: frozenset[str]
    pattern: UriTemplate | None = None
    app: AppPolicy | None = None
    """The policy of a view."""


class UnlistedResources(Protocol):
    """Resources that no listing shows, and that are found by their URIs."""

    @property
    def registries(self) -> tuple[Registry[Any], ...]:
        """The registries of the resources, with scopes and tags."""
        ...

    def find(self, uri: str, auth: Auth | None, *, disabled: bool = False) -> RegisteredResource | None:
        """Return the resource that serves ``uri`` to this caller, whose handler takes the URI; `None` where there is
        none. ``disabled``: see `Registry.get_for`."""
        ...


class Resources:
    """The resources and templates of one server."""

    def __init__(self, page_size: int | None, hints: CacheHints, encoders: Encoders | None = None) -> None:
        self._hints = hints
        self._encoders = encoders
        self.registry: Registry[RegisteredResource] = Registry("resource", page_size)
        self.templates: Registry[RegisteredResource] = Registry("resource template", page_size)
        self.page_size = page_size
        """The number of things in a page of a listing; `None`: all."""
        self.unlisted: list[UnlistedResources] = []
        """Resources that no listing shows."""
        self.mounted: list[Resources] = []
        """The resources of mounted servers."""
        self.has_apps = False
        """True where resources may be views: see `Apps`."""

    def add(self, uri: str, function: Callable[..., Any], options: ResourceOptions) -> None:
        """Register ``function`` under a URI or a URI template. See `ResourceOptions` and `Server.resource`."""
        meta, scopes, cache_scope = options.get("meta"), options.get("scopes", ()), options.get("cache_scope")
        check_meta_keys(meta)
        if not _SCHEME.match(uri):
            raise ValueError(f"{uri[:200]!r} is no URI, which begins with a scheme: 'data://{uri[:200]}' for example")
        if len(uri) > LONGEST_URI:
            raise ValueError(f"{uri[:40]}… has {len(uri)} characters; a URI has at most {LONGEST_URI}")
        needed, visible = checked_scopes(uri, scopes), checked_visible(uri, options.get("visible"))
        tags = checked_tags(uri, options.get("tags", ()))
        is_private = bool(needed) or visible is not None
        if is_private and cache_scope == "public":
            raise ValueError(f"{uri}: a cache would show to everybody what is for some: leave out cache_scope='public'")
        hints = self._hints.but(options.get("ttl_ms"), "private" if is_private else cache_scope)
        handler = UserFunction.of(function)
        name, title, description, icons = handler.listed(options)
        mime_type, annotations = options.get("mime_type"), options.get("annotations")
        if (app := options.get("app")) is not None:
            check_apps("app=", self.has_apps)
            mime_type = app.type_of(uri, mime_type)
        names = set(handler.names)
        if UriTemplate.is_template(uri):
            pattern = UriTemplate(uri)
            if names != set(pattern.names):
                raise TypeError(
                    f"{uri}: the parameters of {name} must be those of the template: {', '.join(pattern.names)}"
                )
            template = ResourceTemplate(uri, name, title, description, mime_type, annotations, icons, meta)
            self.templates.add(uri, RegisteredResource(template, handler, hints, needed, visible, tags, pattern, app))
            return
        if names:
            raise TypeError(
                f"{uri}: {name} has parameters, so its URI must be a template, {uri}/{{{min(names)}}} for example"
            )
        size = options.get("size")
        resource = Resource(uri, name, title, description, mime_type, annotations, size, icons, meta)
        self.registry.add(uri, RegisteredResource(resource, handler, hints, needed, visible, tags, None, app))

    @property
    def has_scopes(self) -> bool:
        """True when a resource or a template needs a scope."""
        return any(each.scopes for registry in self.registries for each in registry.including_disabled())

    @property
    def registries(self) -> tuple[Registry[Any], ...]:
        """The registries of what can be read, the unlisted ones included."""
        return self.registry, self.templates, *(registry for each in self.unlisted for registry in each.registries)

    @property
    def is_used(self) -> bool:
        """True where there is something to read, disabled or not, or may be some time."""
        return self.registry.is_used or self.templates.is_used or bool(self.unlisted)

    def note_watcher(self, uri: str, more: int) -> None:
        """Note that one client more, or less, wants to be told of changes of ``uri``, for those who have to know."""
        for resources in self.mounted:
            resources.note_watcher(uri, more)

    def remove(self, uri: str) -> None:
        """Remove a resource or a template. Raises `KeyError` when there is none."""
        (self.templates if UriTemplate.is_template(uri) else self.registry).remove(uri)

    def find(
        self, uri: str, auth: Auth | None, *, disabled: bool = False
    ) -> tuple[RegisteredResource, dict[str, str]] | None:
        """Return the entry that serves ``uri`` to this caller, and the template's values; a resource goes before
        templates, these in the order of registration, and templates before what is not listed. `None` when there is no
        such entry, and for a URI that is too long, which is not matched. ``disabled``: see `Registry.get_for`."""
        if len(uri) > LONGEST_URI:
            return None
        if (resource := self.registry.get_for(auth, uri, disabled=disabled)) is not None:
            return resource, {}
        for template in self.templates.including_disabled() if disabled else self.templates:
            assert template.pattern is not None, "each template has one"
            if (values := template.pattern.match(uri)) is not None and (
                template.visible is None or template.visible(auth)
            ):
                return template, values
        for unlisted in self.unlisted:
            if (entry := unlisted.find(uri, auth, disabled=disabled)) is not None:
                return entry, {"uri": uri}
        return None

    async def read(self, scope: RequestScope, lifespan: Any) -> ReadResourceResult | InputRequiredResult:
        """Answer ``resources/read``. Raises `CodedError`, also for a URI that is too long."""
        uri = structure_params(scope.request.params, ReadResourceParams, scope.request.revision).uri
        check_length(uri)
        found = self.find(uri, scope.exchange.peer.auth)
        if found is None:
            raise self.not_found(scope, uri)
        entry, values = found
        try:
            bound = entry.handler.bind(cast("JSONObject", values), strict=False)
            run = partial(entry.handler.call, scope, lifespan, bound)
            value = await run()
            if isinstance(value, InputRequired):
                value = await settle(value, scope, run)
        except BadArguments as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}", {"uri": uri}) from None
        except ResourceNotFound:
            raise self.not_found(scope, uri) from None
        if isinstance(value, FINISHED):
            return value
        if isinstance(value, ReadResourceResult):
            hints = entry.hints.but(value.ttl_ms, "private" if depends_on_caller(entry) else value.cache_scope)
            contents = value.contents if entry.app is None else list(map(entry.app.on, value.contents))
            return attrs.evolve(value, contents=contents, ttl_ms=hints.ttl_ms, cache_scope=hints.scope)
        if isinstance(value, media_kinds()):
            from .media import read_media  # late: few resources return any

            (value,) = await read_media(value, scope)
        parts = cast("list[Any]", value) if _is_parts(value) else [value]
        try:
            contents = [_contents(uri, part, entry.listed.mime_type, self._encoders) for part in parts]
        except NotSerializable as error:
            raise UnsendableResult(str(error)) from None
        if entry.app is not None:
            contents = list(map(entry.app.on, contents))
        return ReadResourceResult(contents, entry.hints.ttl_ms, entry.hints.scope)

    @staticmethod
    def not_found(scope: RequestScope, uri: str) -> CodedError:
        """Return the error for ``uri`` in the form of the request's revision."""
        return CodedError(scope.request.revision.resource_not_found, "Resource not found", {"uri": uri})


def _is_parts(value: Any) -> bool:
    """Return whether ``value`` is a list of parts, and not a list that is itself the JSON data."""
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(parts) and all(isinstance(part, TextResourceContents | BlobResourceContents) for part in parts)


def _contents(uri: str, value: Any, mime_type: str | None, encoders: Encoders | None) -> ResourceContents:
    if isinstance(value, TextResourceContents | BlobResourceContents):
        return value
    if isinstance(value, ImageContent | AudioContent):
        return BlobResourceContents(uri, value.data, mime_type or value.mime_type)
    if isinstance(value, EmbeddedResource):
        return attrs.evolve(value.resource, uri=uri, mime_type=mime_type or value.resource.mime_type)
    if isinstance(value, str):
        return TextResourceContents(uri, value, mime_type or "text/plain")
    if isinstance(value, bytes):
        return BlobResourceContents(uri, base64.b64encode(value).decode(), mime_type or "application/octet-stream")
    return TextResourceContents(uri, encode_value(to_plain(value, encoders)).decode(), mime_type or "application/json")


LONGEST_URI: Final = 8192
"""Limit in characters. A URI is matched against each template, and kept for as long as its subscription, so its length
is bounded."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|\{")
_EXPRESSION: Final = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)(\*?)\}")
_DELIMITERS: Final = frozenset("/?#")
_RESERVED: Final = re.compile(r"[:@!$&'()*+,;=\[\]]")
"""Further characters that values of a ``{name}`` hold percent-encoded only (RFC 6570, 3.2.2)."""
_MALFORMED: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SLASH: Final = re.compile(r"[/\\]")


def check_length(uri: str) -> None:
    """Raise `CodedError` (-32602) for a URI of a peer that has more than `LONGEST_URI` characters."""
    if len(uri) > LONGEST_URI:
        raise CodedError(INVALID_PARAMS, f"Invalid params: a URI has at most {LONGEST_URI} characters")


class UriTemplate:
    """A URI with names in the place of some of its parts.

    ``{name}`` stands for one segment, which is one or more characters other than ``/``, ``?`` and ``#``. ``{+name}``,
    or ``{name*}``, stands for one or more characters of any kind. A URI is matched as written; then the text of each
    name is percent-decoded once. The URI does not match where the decoding gives

    - anything but UTF-8, or a control character;
    - for ``{name}``: a slash or a backslash, ``.`` or ``..``;
    - for ``{+name}``: a slash or a backslash at its beginning, or ``..`` as a segment, for slashes and backslashes as
    separators.

    Between two names stands text with ``/``, ``?`` or ``#`` in it; or, behind a ``{name}``, with another character that
    is percent-encoded in its values, ``&`` or ``,`` for example, and then the first occurrence of that character ends
    the name. One name at most is a ``{+name}``. All other templates are ambiguous: some URIs would fit in two ways. In
    templates that are not ambiguous, the end of a name is known before the rest of the URI is read, so matching takes
    time in proportion to the length of the URI.

    Raises `ValueError` for an ambiguous template, a name that stands twice, and other expressions, which the error
    names.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        found = list(_EXPRESSION.finditer(template))
        self.names: tuple[str, ...] = tuple(match[2] for match in found)
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{template}: a name stands twice")
        self._fits: dict[str, Callable[[str], bool]] = {}
        pattern = re.escape(self._literal(template[: found[0].start()])) if found else ""
        for match, following in zip(found, [*found[1:], None], strict=False):
            is_path = bool(match[1] or match[3])
            if is_path and _is_path in self._fits.values():
                raise ValueError(f"{template} is ambiguous: only one of its names can hold slashes")
            literal, others = self._literal(template[match.end() : following and following.start()]), "/?#"
            if following is not None and _DELIMITERS.isdisjoint(literal):
                end = None if is_path else _RESERVED.search(literal)
                if end is None:
                    raise ValueError(
                        f"{template} is ambiguous: nothing says where {{{match[2]}}} ends and {following[0]} begins. "
                        f"Put a slash between them, {template[: match.end()]}/{following[0]} for example."
                    )
                others += re.escape(end[0])
            pattern += f"(?P<{match[2]}>{'.+' if is_path else f'[^{others}]+'}){re.escape(literal)}"
            self._fits[match[2]] = _is_path if is_path else _is_segment
        self._pattern = re.compile(pattern or re.escape(self._literal(template)))

    def _literal(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise ValueError(f"{self.template}: only {{name}}, {{+name}} and {{name*}} can be matched")
        return text

    @staticmethod
    def is_template(uri: str) -> bool:
        """Return whether ``uri`` has expressions."""
        return "{" in uri or "}" in uri

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the value of each name, or `None` where ``uri`` does not fit."""
        match = self._pattern.fullmatch(uri)
        if match is None:
            return None
        values: dict[str, str] = {}
        for name, fits in self._fits.items():
            value = _decoded(match[name])
            if value is None or not fits(value):
                return None
            values[name] = value
        return values


def _decoded(text: str) -> str | None:
    """Return ``text`` with its percent-encodings decoded once, or `None` for text that is malformed or no UTF-8."""
    if _MALFORMED.search(text):
        return None
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        return None


def _is_segment(text: str) -> bool:
    return text not in (".", "..") and not _CONTROL.search(text) and not _SLASH.search(text)


def _is_path(text: str) -> bool:
    return not _SLASH.match(text) and not _CONTROL.search(text) and ".." not in _SLASH.split(text)
