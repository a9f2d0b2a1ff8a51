"""Resources and resource templates: registration, ``resources/read``, and finding the resource for a URI."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs

from ...classes import frozen
from ...jsonrpc.codec import encode_readable
from ...jsonrpc.errors import INVALID_PARAMS, CodedError, MCPError, NotSerializable, UnsendableResult
from ...protocol.converters import structure_params
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    TextResourceContents,
)
from ...protocol.types.input_required import InputRequiredResult
from ...protocol.types.offers import ReadResourceParams, ReadResourceResult, Resource, ResourceTemplate
from ...runtime.peer import Auth
from ...runtime.requests.scope import RequestScope
from ..calling.results import media_kinds, to_plain
from ..calling.signature import BadArguments, UserFunction
from ..context.input_required import FINISHED, InputRequired, settle
from ..options import CacheHints, ResourceOptions, Visible, check_apps, checked_access
from .registration import Offer, Registry, depends_on_caller
from .uris import LONGEST_URI, UriTemplate, check_length, checked_uri, normal_uri

if TYPE_CHECKING:
    from ...protocol.types.apps import AppPolicy
    from ..calling.results import Encoders


class ResourceNotFound(MCPError):
    """Raise this in a resource handler if no resource exists at the URI. The client gets the error code -32002 in
    legacy protocol revisions, and -32602 in modern protocol revisions."""


@frozen(eq=False)
class RegisteredResource(Offer):
    """A resource and the function that reads it. A resource with a ``pattern`` is a resource template."""

    listed: Resource | ResourceTemplate
    handler: UserFunction
    hints: CacheHints
    scopes: frozenset[str] = frozenset()
    visible: Visible | None = None
    tags: frozenset[str] = frozenset()
    pattern: UriTemplate | None = None
    app: AppPolicy | None = None
    """The policy of an app's view, which says what the HTML document may load. `None` if the resource isn't a view."""

    @property
    def uri(self) -> str:
        """The URI of the resource, or the URI template."""
        return self.listed.uri if isinstance(self.listed, Resource) else self.listed.uri_template

    @classmethod
    def of(
        cls, uri: str, function: Callable[..., Any], options: ResourceOptions, hints: CacheHints
    ) -> RegisteredResource:
        """Create the resource ``uri``, or a resource template if ``uri`` is a template. ``function`` reads the
        resource.

        See `ResourceOptions` and `Server.resource`. ``hints`` are the server's cache hints.
        """
        meta, cache_scope = options.get("meta"), options.get("cache_scope")
        check_meta_keys(meta)
        uri = checked_uri(uri)
        scopes, visible, tags = checked_access(uri, options)
        is_private = bool(scopes) or visible is not None
        if is_private and cache_scope == "public":
            raise ValueError(
                f"{uri}: a public cache would reveal the resource to callers that may not see it: "
                "remove cache_scope='public'"
            )
        hints = hints._replace(options.get("ttl_ms"), "private" if is_private else cache_scope)
        handler = UserFunction.of(function, asyncio=options.get("asyncio", False))
        name, title, description, icons = handler.listed(options)
        mime_type, annotations = options.get("mime_type"), options.get("annotations")
        if (app := options.get("app")) is not None:
            mime_type = app._type_of(uri, mime_type)
        names, required = set(handler.names), set(handler.schema.get("required", ()))
        pattern = UriTemplate(uri) if UriTemplate.is_template(uri) else None
        if pattern is None and required:
            raise TypeError(
                f"{uri}: {name} has parameters, so its URI must be a template, for example {uri}/{{{min(required)}}}"
            )
        if pattern is not None and not required <= set(pattern.names) <= names:
            raise TypeError(
                f"{uri}: {name} must have the parameters that the template names: {', '.join(pattern.names)}. "
                "All other parameters need a default"
            )
        if pattern is None:
            size = options.get("size")
            listed = Resource(uri, name, title, description, mime_type, annotations, size, icons, meta)
        else:
            listed = ResourceTemplate(uri, name, title, description, mime_type, annotations, icons, meta)
        return cls(listed, handler, hints, scopes, visible, tags, pattern, app)


class UnlistedResources(Protocol):
    """Resources that clients can read by URI, but that aren't in any list of resources."""

    @property
    def registries(self) -> tuple[Registry[Any], ...]:
        """The registries that contain the unlisted resources. They are needed to find the scopes and tags of these
        resources."""
        ...

    def find(self, uri: str, auth: Auth | None, *, disabled: bool = False) -> RegisteredResource | None:
        """Return the unlisted resource with this ``uri``, or `None` if this caller can't see such a resource.

        The resource's handler takes the URI. For ``disabled``, see `Registry.get_for`.
        """
        ...


class Resources:
    """The resources and resource templates of one server."""

    def __init__(self, page_size: int | None, hints: CacheHints, encoders: Encoders | None = None) -> None:
        self._hints = hints
        self._encoders = encoders
        self.registry: Registry[RegisteredResource] = Registry("resource", page_size)
        self.templates: Registry[RegisteredResource] = Registry("resource template", page_size)
        self.page_size = page_size
        """The number of entries in a page of a list. `None` means that all entries are in one page."""
        self.unlisted: list[UnlistedResources] = []
        """Resources that can be read by URI, but aren't in any list."""
        self.mounted: list[Resources] = []
        """The resources of mounted servers."""
        self.has_apps = False
        """True if resources may be views of apps. See `Apps`."""

    def add(self, uri: str, function: Callable[..., Any], options: ResourceOptions) -> None:
        """Register ``function`` as the resource ``uri``, or as a resource template. See `RegisteredResource.of`."""
        if options.get("app") is not None:
            check_apps("app=", self.has_apps)
        entry = RegisteredResource.of(uri, function, options, self._hints)
        (self.registry if entry.pattern is None else self.templates).add(normal_uri(entry.uri), entry)

    @property
    def has_scopes(self) -> bool:
        """Return whether any resource or template needs an OAuth scope."""
        return any(each.scopes for registry in self.registries for each in registry.including_disabled())

    @property
    def registries(self) -> tuple[Registry[Any], ...]:
        """The registries of all resources and templates that can be read, including unlisted resources."""
        return self.registry, self.templates, *(registry for each in self.unlisted for registry in each.registries)

    @property
    def is_used(self) -> bool:
        """True if the server has any resources, including disabled ones, or may get some while it runs."""
        return self.registry.is_used or self.templates.is_used or bool(self.unlisted)

    def change_watchers(self, uri: str, delta: int) -> None:
        """Add ``delta`` to the number of clients that are subscribed to ``uri``."""
        for resources in self.mounted:
            resources.change_watchers(uri, delta)

    def remove(self, uri: str) -> None:
        """Remove a resource or a template. Raises `KeyError` if the server has no such resource or template."""
        (self.templates if UriTemplate.is_template(uri) else self.registry).remove(self.name_of(uri))

    def name_of(self, uri: str) -> str:
        """Return the name under which a resource or template is registered: the normal form of its URI. For a resource
        of a mounted server, return its URI unchanged."""
        known = self.registry.known(uri) or self.templates.known(uri)
        return normal_uri(uri) if known is None else uri

    def find(
        self, uri: str, auth: Auth | None, *, disabled: bool = False
    ) -> tuple[RegisteredResource, dict[str, str]] | None:
        """Return the resource or template that serves ``uri`` to this caller, and the values of the template's
        parameters.

        Return `None` if no resource or template serves ``uri``.

        Resources come first, then templates in the order of registration, then unlisted resources. A URI that is too
        long isn't matched. ``disabled``: see `Registry.get_for`.
        """
        if len(uri) > LONGEST_URI:
            return None
        resource = self.registry.get_for(auth, uri, disabled=disabled)
        if resource is None and (normal := normal_uri(uri)) != uri:
            resource = self.registry.get_for(auth, normal, disabled=disabled)
        if resource is not None:
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
        """Answer ``resources/read``. Raises `CodedError`, for example if the URI is too long."""
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
            hints = entry.hints._replace(value.ttl_ms, "private" if depends_on_caller(entry) else value.cache_scope)
            contents = value.contents if entry.app is None else list(map(entry.app._on, value.contents))
            return attrs.evolve(value, contents=contents, ttl_ms=hints.ttl_ms, cache_scope=hints.scope)
        if isinstance(value, media_kinds()):
            from ..calling.media import read_media  # lazy import: few resources return media

            (value,) = await read_media(value, scope)
        parts = cast("list[Any]", value) if _is_parts(value) else [value]
        try:
            contents = [_contents(uri, part, entry.listed.mime_type, self._encoders) for part in parts]
        except NotSerializable as error:
            raise UnsendableResult(str(error)) from None
        if entry.app is not None:
            contents = list(map(entry.app._on, contents))
        return ReadResourceResult(contents, entry.hints.ttl_ms, entry.hints.scope)

    @staticmethod
    def not_found(scope: RequestScope, uri: str) -> CodedError:
        """Return the "not found" error for ``uri``, with the error code of the request's protocol revision."""
        return CodedError(scope.request.revision.resource_not_found, "Resource not found", {"uri": uri})


def _is_parts(value: Any) -> bool:
    """Return whether all items of the list ``value`` are resource contents. Otherwise, the list itself is JSON data."""
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
    return TextResourceContents(
        uri, encode_readable(to_plain(value, encoders)).decode(), mime_type or "application/json"
    )
