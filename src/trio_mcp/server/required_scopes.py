"""The scopes that a request needs, by what its server has registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from ..protocol.fields import JSONObject
from .server import Server

_NONE: Final = frozenset[str]()


def has_scopes(server: Server) -> bool:
    """Return whether anything of ``server`` needs a scope."""
    offers = (server.tools.registry, server.prompts.registry, server.resources.registry, server.resources.templates)
    return any(offer.scopes for registry in offers for offer in registry)


def required_scopes(server: Server, method: str, params: object) -> frozenset[str]:
    """Return the scopes that a request to ``server`` needs: those of all that the request names. Nothing is known here
    of whether the request makes sense."""
    named = _NAMED_BY.get(method)
    if named is None or not isinstance(params, dict):
        return _NONE
    return _NONE.union(*named(server, cast("JSONObject", params)))


def _tool(server: Server, params: JSONObject) -> Iterator[frozenset[str]]:
    if (tool := server.tools.registry.get(_text(params.get("name")))) is not None:
        yield tool.scopes


def _prompt(server: Server, params: JSONObject) -> Iterator[frozenset[str]]:
    if (prompt := server.prompts.registry.get(_text(params.get("name")))) is not None:
        yield prompt.scopes


def _resource(server: Server, params: JSONObject) -> Iterator[frozenset[str]]:
    if (found := server.resources.find(_text(params.get("uri")))) is not None:
        yield found[0].scopes


def _completed(server: Server, params: JSONObject) -> Iterator[frozenset[str]]:
    """Yield the scopes of the thing whose argument is completed: the suggestions tell of the thing."""
    ref = _object(params.get("ref"))
    yield from _prompt(server, ref)
    template = server.resources.templates.get(_text(ref.get("uri")))
    if template is not None:
        yield template.scopes
    else:
        yield from _resource(server, ref)


def _watched(server: Server, params: JSONObject) -> Iterator[frozenset[str]]:
    """Yield the scopes of the resources of which changes are told."""
    uris = _object(params.get("notifications")).get("resourceSubscriptions")
    if isinstance(uris, list) and server.resources.has_scopes:
        for uri in list(dict.fromkeys(map(_text, cast("list[Any]", uris))))[: server.limits.max_subscriptions]:
            yield from _resource(server, {"uri": uri})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> JSONObject:
    return cast("JSONObject", value) if isinstance(value, dict) else {}


_NAMED_BY: Final = {
    "tools/call": _tool,
    "prompts/get": _prompt,
    "resources/read": _resource,
    "resources/subscribe": _resource,
    "completion/complete": _completed,
    "subscriptions/listen": _watched,
}
