"""Offers of a server that requests name: the scopes that a request needs are those of all that it names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from ..protocol.fields import JSONObject, as_object
from ..runtime.peer import Auth, Peer
from ..state.requests import InboundRequest
from .offers.prompts import RegisteredPrompt
from .offers.resources import RegisteredResource
from .offers.tools import RegisteredTool
from .server import Server

NO_SCOPES: Final = frozenset[str]()


def required_scopes(server: Server, method: str, params: object, auth: Auth | None) -> frozenset[str]:
    """Return the scopes that a request to ``server`` needs: those of all that the request names, and that exists for
    this caller. Nothing is known here of whether the request makes sense."""
    if method not in _NAMING or not isinstance(params, dict):
        extended = server.extension_handlers
        return NO_SCOPES if extended is None else extended.scopes.get(method, NO_SCOPES)
    offers = _named(server, method, cast("JSONObject", params), auth)
    needed = NO_SCOPES
    for offer in offers:
        if offer is not None and offer.scopes:
            needed |= offer.scopes
    return needed


_NAMING: Final = frozenset(("tools/call", "prompts/get", "resources/read", "resources/subscribe")) | {
    "completion/complete",
    "subscriptions/listen",
    "skills/get",
    "resources/directory/read",
}
"""The methods that name what a server offers."""


def _named(
    server: Server, method: str, params: JSONObject, auth: Auth | None
) -> Iterable[RegisteredTool | RegisteredPrompt | RegisteredResource | None]:
    """Return what a request names; `None` for each name that does not exist for this caller. What is disabled counts:
    a handler that is parked goes on, and its rounds need the scopes."""
    match method:
        case "tools/call":
            return (server.tools.named(params, auth),)
        case "prompts/get":
            return (server.prompts.registry.get_for(auth, _text(params.get("name")), disabled=True),)
        case "completion/complete":  # the suggestions tell of the thing whose argument is completed
            ref = as_object(params.get("ref"))
            uri = _text(ref.get("uri"))
            prompt = server.prompts.registry.get_for(auth, _text(ref.get("name")))
            template = server.resources.templates.get_for(auth, server.resources.name_of(uri))
            return prompt, template or _resource(server, uri, auth)
        case "subscriptions/listen":  # the resources of which changes are told
            uris = as_object(params.get("notifications")).get("resourceSubscriptions")
            if not isinstance(uris, list) or not server.resources.has_scopes:
                return ()
            asked = list(dict.fromkeys(map(_text, cast("list[Any]", uris))))[: server.limits.max_subscriptions]
            return [_resource(server, uri, auth) for uri in asked]
        case _:
            return (_resource(server, _text(params.get("uri")), auth),)


def _resource(server: Server, uri: str, auth: Auth | None) -> RegisteredResource | None:
    found = server.resources.find(uri, auth, disabled=True)
    return None if found is None else found[0]


def all_exist(server: Server, request: InboundRequest, peer: Peer) -> bool:
    """Return whether everything that a retry names exists for its caller still."""
    name = request.method.name
    return name not in _NAMING or None not in _named(server, name, request.params, peer.auth)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
