"""Resources and resource templates: registration and ``resources/read``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import attrs

from ...jsonrpc.codec import encode_value
from ...jsonrpc.errors import INVALID_PARAMS, CodedError, MCPError, NotSerializable, UnsendableResult
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.types.content import Annotations, BlobResourceContents, ResourceContents, TextResourceContents
from ...protocol.types.input_required import InputRequiredResult
from ...protocol.types.lifecycle import CacheScope, Icon
from ...protocol.types.resources import ReadResourceResult, Resource, ResourceTemplate
from ...runtime.requests.request_scope import RequestScope
from ..asking.input_required import InputRequired, settle
from ..cache_hints import CacheHints
from ..signatures.signature import BadArguments
from .plain_values import to_plain
from .registry import Registry
from .scopes import checked_scopes
from .uri_templates import LONGEST_URI, UriTemplate, check_length
from .user_function import UserFunction


class ResourceNotFound(MCPError):
    """Raised by a resource handler for a URI that names nothing. The answer has the code of the request's revision:
    -32002 in legacy revisions, -32602 in modern revisions."""


@attrs.frozen(eq=False)
class RegisteredResource:
    """A resource under one URI, with the function that reads its contents."""

    resource: Resource
    handler: UserFunction
    hints: CacheHints
    scopes: frozenset[str]


@attrs.frozen(eq=False)
class RegisteredTemplate:
    """A family of resources, with the function that reads a member of the family."""

    template: ResourceTemplate
    pattern: UriTemplate
    handler: UserFunction
    hints: CacheHints
    scopes: frozenset[str]


class Resources:
    """The resources and templates of one server."""

    def __init__(self, page_size: int | None, hints: CacheHints) -> None:
        self._hints = hints
        self.registry: Registry[RegisteredResource] = Registry("resource", page_size)
        self.templates: Registry[RegisteredTemplate] = Registry("resource template", page_size)

    def add(
        self,
        uri: str,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        icons: Sequence[Icon] | None = None,
        annotations: Annotations | None = None,
        size: int | None = None,
        ttl_ms: int | None = None,
        cache_scope: CacheScope | None = None,
        meta: JSONObject | None = None,
        scopes: Sequence[str] = (),
    ) -> None:
        """Register ``function`` under a URI or a URI template. See `ResourceOptions` and `Server.resource`."""
        check_meta_keys(meta)
        if len(uri) > LONGEST_URI:
            raise ValueError(f"{uri[:40]}… has {len(uri)} characters; a URI has at most {LONGEST_URI}")
        if scopes and cache_scope == "public":
            raise ValueError(
                f"{uri}: a cache would show to everybody what needs scopes: leave out cache_scope='public'"
            )
        hints = self._hints.but(ttl_ms, "private" if scopes else cache_scope)
        needed = checked_scopes(uri, scopes)
        handler = UserFunction.of(function)
        shown_icons = list(icons) if icons else None
        name = name or function.__name__
        description = description if description is not None else handler.doc
        names = set(handler.signature.names)
        if UriTemplate.is_template(uri):
            pattern = UriTemplate(uri)
            if names != set(pattern.names):
                raise TypeError(
                    f"{uri}: the parameters of {name} must be those of the template: {', '.join(pattern.names)}"
                )
            template = ResourceTemplate(uri, name, title, description, mime_type, annotations, shown_icons, meta)
            self.templates.add(uri, RegisteredTemplate(template, pattern, handler, hints, needed))
            return
        if names:
            raise TypeError(
                f"{uri}: {name} has parameters, so its URI must be a template, {uri}/{{{min(names)}}} for example"
            )
        resource = Resource(uri, name, title, description, mime_type, annotations, size, shown_icons, meta)
        self.registry.add(uri, RegisteredResource(resource, handler, hints, needed))

    @property
    def has_scopes(self) -> bool:
        """True when a resource or a template needs a scope."""
        return any(each.scopes for registry in (self.registry, self.templates) for each in registry)

    def remove(self, uri: str) -> None:
        """Remove a resource or a template. Raises `KeyError` when there is none."""
        (self.templates if UriTemplate.is_template(uri) else self.registry).remove(uri)

    def find(self, uri: str) -> tuple[RegisteredResource | RegisteredTemplate, dict[str, str]] | None:
        """Return the entry that serves ``uri``, and the template's values; a resource goes before templates, and
        templates go in the order of registration. `None` when there is no such entry, and for a URI that is too long,
        which is not matched."""
        if len(uri) > LONGEST_URI:
            return None
        if (resource := self.registry.get(uri)) is not None:
            return resource, {}
        for template in self.templates:
            if (values := template.pattern.match(uri)) is not None:
                return template, values
        return None

    async def read(self, scope: RequestScope, uri: str, lifespan: Any) -> ReadResourceResult | InputRequiredResult:
        """Answer ``resources/read``. Raises `CodedError`, also for a URI that is too long."""
        check_length(uri)
        found = self.find(uri)
        if found is None:
            raise self.not_found(scope, uri)
        entry, values = found
        try:
            bound = entry.handler.signature.bind(cast("JSONObject", values), strict=False)
            run = partial(entry.handler.call, scope, lifespan, bound)
            value = await run()
            if isinstance(value, InputRequired):
                value = await settle(value, scope, run)
        except BadArguments as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}", {"uri": uri}) from None
        except ResourceNotFound:
            raise self.not_found(scope, uri) from None
        if isinstance(value, InputRequiredResult):
            return value
        if isinstance(value, ReadResourceResult):
            hints = entry.hints.but(value.ttl_ms, "private" if entry.scopes else value.cache_scope)
            return attrs.evolve(value, ttl_ms=hints.ttl_ms, cache_scope=hints.scope)
        mime_type = entry.resource.mime_type if isinstance(entry, RegisteredResource) else entry.template.mime_type
        parts = cast("list[Any]", value) if _is_parts(value) else [value]
        try:
            contents = [_contents(uri, part, mime_type) for part in parts]
        except NotSerializable as error:
            raise UnsendableResult(str(error)) from None
        return ReadResourceResult(contents, entry.hints.ttl_ms, entry.hints.scope)

    @staticmethod
    def not_found(scope: RequestScope, uri: str) -> CodedError:
        """Return the error for ``uri`` in the form of the request's revision."""
        return CodedError(scope.request.revision.resource_not_found, "Resource not found", {"uri": uri})


def _is_parts(value: Any) -> bool:
    """Return whether ``value`` is a list of parts, and not a list that is itself the JSON data."""
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(parts) and all(isinstance(part, TextResourceContents | BlobResourceContents) for part in parts)


def _contents(uri: str, value: Any, mime_type: str | None) -> ResourceContents:
    if isinstance(value, TextResourceContents | BlobResourceContents):
        return value
    if isinstance(value, str):
        return TextResourceContents(uri, value, mime_type or "text/plain")
    if isinstance(value, bytes):
        return BlobResourceContents(uri, base64.b64encode(value).decode(), mime_type or "application/octet-stream")
    return TextResourceContents(uri, encode_value(to_plain(value)).decode(), mime_type or "application/json")
