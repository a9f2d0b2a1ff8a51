"""MCP Apps: HTML views of tools, which a host shows in a sandboxed frame (SEP-1865, revision 2026-01-26).

A tool specifies its view, and whether the model and views may call the tool. The contents of the view specify the
origins that the document may use. Messages between a view and its host don't involve a server or a client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal, Self, TypeAlias, cast

import attrs

from ...classes import frozen
from ..fields import JSONObject, as_object
from .content import ResourceContents, TextResourceContents
from .tools import Tool

APPS_EXTENSION: Final = "io.modelcontextprotocol/ui"
APP_TYPE: Final = "text/html;profile=mcp-app"
"""The MIME type of views, exactly as written (SEP-1865, Content Requirements)."""

Caller: TypeAlias = Literal["model", "app"]
Permission: TypeAlias = Literal["camera", "microphone", "geolocation", "clipboard_write"]

_SCHEME: Final = "ui://"
_CALLERS: Final[tuple[Caller, ...]] = ("model", "app")
_FLAT: Final = "ui/resourceUri"
"""Deprecated key in ``_meta`` for the URI of a view. This package reads the key, but doesn't write it (SEP-1865,
Resource Discovery)."""
_NAMED: Final = {
    "connect": "connectDomains",
    "resources": "resourceDomains",
    "frames": "frameDomains",
    "base_uris": "baseUriDomains",
}
_PERMISSIONS: Final[dict[Permission, str]] = {
    "camera": "camera",
    "microphone": "microphone",
    "geolocation": "geolocation",
    "clipboard_write": "clipboardWrite",
}
# An origin must not contain a character that starts another directive or source of a Content-Security-Policy.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:\*\.)?[A-Za-z0-9_.-]+(?::[0-9]{1,5})?")
_MOST_ORIGINS: Final = 100
"""Maximum number of origins of each kind that are read from a server's policy."""
_DOCUMENT: Final = re.compile(r"\ufeff?\s*+(?:<!--.*?-->\s*+)*+<!doctype html", re.IGNORECASE | re.DOTALL)


def _is_view(uri: object) -> bool:
    return isinstance(uri, str) and uri.startswith(_SCHEME) and len(uri) > len(_SCHEME)


def check_view(uri: str) -> None:
    """Raise `ValueError` if ``uri`` isn't a valid URI of a view (an HTML document for a tool)."""
    # SEP-1865, Content Requirements: the URI MUST start with the ui:// scheme.
    if not _is_view(uri):
        raise ValueError(f"the URI of a view must begin with ui://, as in ui://weather/dashboard, not {uri[:200]!r}")


def _check_view(_: Any, __: Any, uri: str) -> None:
    check_view(uri)


def _callers(visible_to: Iterable[str]) -> tuple[Caller, ...]:
    if isinstance(visible_to, str) or not set(found := tuple(visible_to)) <= set(_CALLERS):
        raise ValueError(
            f'visible_to must contain "model", "app" or both, not {visible_to!r}:\n'
            '    right:  UI("ui://weather/dashboard", visible_to=("app",))'
        )
    return cast("tuple[Caller, ...]", found)


@frozen
class UI:
    """The view of a tool, and whether models or views may call the tool. A view is an HTML document that shows the
    tool's results.

    ``visible_to`` contains ``model`` if hosts should show the tool to the model, and ``app`` if views of the same
    server may call it. By default it contains both. Without a ``view``, the tool has no document of its own:
    ``UI(visible_to=("app",))`` is a tool for the buttons of another tool's view. Raises `ValueError` for a URI that
    doesn't begin with ``ui://``, and for other callers.
    """

    view: str | None = attrs.field(default=None, validator=attrs.validators.optional(_check_view))
    """URI of the view, which is a resource of the same server."""
    visible_to: tuple[Caller, ...] = attrs.field(default=_CALLERS, converter=_callers, kw_only=True)
    """The callers that may call the tool: ``model``, ``app`` or both."""

    @classmethod
    def of(cls, tool: Tool) -> UI:
        """Return the MCP Apps settings of ``tool``: the URI of its view, and whether models or views may call the tool.

        The data of ``tool`` comes from an untrusted server. An invalid URI counts as missing, and an unknown caller is
        ignored.
        """
        meta = tool.meta or {}
        ui = as_object(meta.get("ui"))
        view = ui.get("resourceUri", meta.get(_FLAT))
        visibility = ui.get("visibility")
        # Without `visibility`, both models and views may call the tool (SEP-1865, Visibility).
        # If `visibility` is invalid, neither models nor views may call the tool.
        named: Collection[Any] = _CALLERS if visibility is None else ()
        if isinstance(visibility, list):
            named = cast("list[Any]", visibility)
        return cls(view if _is_view(view) else None, visible_to=[caller for caller in _CALLERS if caller in named])

    def _in_meta(self, meta: Mapping[str, Any] | None) -> JSONObject:
        """Return ``meta``, the tool's ``_meta``, with the URI of the tool's view and the allowed callers of the tool
        added.

        Raises `ValueError` if ``meta`` already has a view, or if there are no callers.
        """
        if not self.visible_to:
            raise ValueError('visible_to must not be empty: write "model", "app" or both')
        if meta is not None and not meta.keys().isdisjoint(("ui", _FLAT)):
            raise ValueError("both ui= and meta= specify a view for the tool: remove the view from meta=")
        said: JSONObject = {} if self.view is None else {"resourceUri": self.view}
        if set(self.visible_to) != set(_CALLERS):
            said["visibility"] = list(self.visible_to)
        return {**(meta or {}), "ui": said}


def with_view_renamed(tool: Tool, rename: Callable[[str], str]) -> Tool:
    """Return ``tool`` with the URI of its view replaced by the result of ``rename``.

    Everything else in ``_meta`` is unchanged.
    """
    meta = tool.meta
    if not meta:
        return tool
    said, flat = meta.get("ui"), meta.get(_FLAT)
    ui: JSONObject = as_object(said)
    renamed: JSONObject = {}
    if _is_view(uri := ui.get("resourceUri")):
        renamed["ui"] = {**ui, "resourceUri": rename(cast("str", uri))}
    if _is_view(flat):
        renamed[_FLAT] = rename(cast("str", flat))
    return attrs.evolve(tool, meta={**meta, **renamed}) if renamed else tool


def _origins(given: Iterable[str]) -> tuple[str, ...]:
    origins = (given,) if isinstance(given, str) else tuple(given)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"invalid origin {origin[:200]!r}: write https://api.example.com or wss://*.example.com:8443"
            )
    return origins


def _permissions(given: Iterable[str]) -> tuple[Permission, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if unknown := [name for name in names if name not in _PERMISSIONS]:
        raise ValueError(f"unknown permission {unknown[0]!r}: the allowed permissions are {', '.join(_PERMISSIONS)}")
    return cast("tuple[Permission, ...]", names)


@frozen
class AppPolicy:
    """The origins and permissions that the HTML document of a view needs.

    A host may grant less. The default is nothing: the document contains its own scripts and styles, and communicates
    only with the host.

    Origins are like ``https://api.example.com``, or ``wss://*.example.com`` for all subdomains. Raises `ValueError` for
    a malformed origin, and for an unknown permission.
    """

    connect: tuple[str, ...] = attrs.field(default=(), converter=_origins, kw_only=True)
    """Origins to which scripts of the document connect."""
    resources: tuple[str, ...] = attrs.field(default=(), converter=_origins, kw_only=True)
    """Origins of scripts, styles, images, fonts and media."""
    frames: tuple[str, ...] = attrs.field(default=(), converter=_origins, kw_only=True)
    """Origins of frames in the document."""
    base_uris: tuple[str, ...] = attrs.field(default=(), converter=_origins, kw_only=True)
    """Origins that the ``base`` element of the document may have."""
    permissions: tuple[Permission, ...] = attrs.field(default=(), converter=_permissions, kw_only=True)
    """Permissions to request from the browser: ``camera``, ``microphone``, ``geolocation``, ``clipboard_write``."""
    domain: str | None = attrs.field(default=None, kw_only=True)
    """Origin that the document should have, in a form that the host documents."""
    prefers_border: bool | None = attrs.field(default=None, kw_only=True)
    """True if the host should draw a border and a background around the document. False if it should draw neither."""

    @classmethod
    def of(cls, contents: ResourceContents) -> Self:
        """Return the policy in ``contents``, the contents of a view. They come from an untrusted server.

        Invalid parts are omitted, so that the host grants less.
        """
        said = as_object((contents.meta or {}).get("ui"))
        csp, permissions, domain = said.get("csp"), said.get("permissions"), said.get("domain")
        border = said.get("prefersBorder")
        lists: JSONObject = as_object(csp)
        asked: Collection[Any] = as_object(permissions)
        return cls(
            **{name: _read(lists.get(member)) for name, member in _NAMED.items()},
            permissions=[name for name, member in _PERMISSIONS.items() if member in asked],
            domain=domain if isinstance(domain, str) else None,
            prefers_border=border if isinstance(border, bool) else None,
        )

    @property
    def content_security_policy(self) -> str:
        """The ``Content-Security-Policy`` with which a host shows the view's document.

        (SEP-1865, Content Security Policy Enforcement.) It allows only the declared origins.
        """
        own = ("'self'", "'unsafe-inline'", *self.resources)
        media = ("'self'", "data:", *self.resources)
        directives = {
            "default-src": ("'none'",),
            "script-src": own,
            "style-src": own,
            "connect-src": self.connect or ("'none'",),
            "img-src": media,
            "font-src": ("'self'", *self.resources),
            "media-src": media,
            "frame-src": self.frames or ("'none'",),
            "object-src": ("'none'",),
            "base-uri": self.base_uris or ("'self'",),
        }
        return "; ".join(f"{name} {' '.join(sources)}" for name, sources in directives.items())

    def _type_of(self, uri: str, mime_type: str | None) -> str:
        """Return the MIME type of the view ``uri``.

        Raises `ValueError` for an invalid URI, or if the author's ``mime_type`` isn't the type of a view.
        """
        check_view(uri)
        if mime_type not in (None, APP_TYPE):
            raise ValueError(
                f"{uri}: a view must have the MIME type {APP_TYPE}, not {mime_type!r}: leave out mime_type="
            )
        return APP_TYPE

    def _on(self, contents: ResourceContents) -> ResourceContents:
        """Return the ``contents`` of a view with the MIME type that all views have.

        If the contents have no policy, add this one. Raises `ValueError` for another type, and for text that isn't an
        HTML document.
        """
        # SEP-1865, Content Requirements: the MIME type MUST be APP_TYPE, and the content a valid HTML5 document.
        if contents.mime_type not in (None, APP_TYPE):
            raise ValueError(
                f"the contents of a view must have the MIME type {APP_TYPE}, not {contents.mime_type[:200]!r}"
            )
        if isinstance(contents, TextResourceContents) and _DOCUMENT.match(contents.text) is None:
            raise ValueError("the text of a view must be an HTML document, which begins with <!doctype html>")
        return attrs.evolve(contents, mime_type=APP_TYPE, meta={**self._in_meta(), **(contents.meta or {})} or None)

    def _in_meta(self) -> JSONObject:
        csp = {member: list(getattr(self, name)) for name, member in _NAMED.items() if getattr(self, name)}
        said: JSONObject = {
            "csp": csp or None,
            "permissions": {_PERMISSIONS[name]: {} for name in self.permissions} or None,
            "domain": self.domain,
            "prefersBorder": self.prefers_border,
        }
        said = {name: member for name, member in said.items() if member is not None}
        return {"ui": said} if said else {}


def _read(origins: object) -> list[str]:
    """Return the valid origins in ``origins``, which come from an untrusted server."""
    given = cast("list[Any]", origins)[:_MOST_ORIGINS] if isinstance(origins, list) else []
    return [each for each in given if isinstance(each, str) and _ORIGIN.fullmatch(each)]
