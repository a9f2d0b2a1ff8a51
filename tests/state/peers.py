"""Connections to test, and what a peer may say to them."""

from __future__ import annotations

from typing import Any

from trio_mcp.jsonrpc.messages import ErrorResponse, Notification, Request, RequestId
from trio_mcp.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from trio_mcp.protocol.revisions import LATEST_MODERN, Revision
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.events import Event, Refused, RequestReceived
from trio_mcp.state.requests import InboundRequest

__all__ = [
    "accepted",
    "cancel",
    "client_of",
    "initialize",
    "meta_of",
    "modern",
    "refused",
    "server_of",
]


def initialize(version: str, request_id: RequestId = 0, **capabilities: Any) -> Request:
    params = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "pilot", "version": "1"},
    }
    return Request(request_id, "initialize", params)


def server_of(revision: Revision, **capabilities: Any) -> ConnectionState:
    """A server whose client shook hands for ``revision``; for a modern one there is nothing to shake."""
    state = ConnectionState("server")
    if revision.handshake:
        state.finish(accepted(state.receive(initialize(revision.name, **capabilities))))
        state.receive(Notification("notifications/initialized"))
    return state


def client_of(revision: Revision) -> ConnectionState:
    state = ConnectionState("client")
    state.revision = revision
    return state


def meta_of(**more: Any) -> dict[str, Any]:
    """The ``_meta`` of a modern request; `None` takes a member out."""
    meta = {PROTOCOL_VERSION: LATEST_MODERN.name, CLIENT_CAPABILITIES: {}, **more}
    return {key: value for key, value in meta.items() if value is not None}


def modern(request_id: RequestId, method: str = "tools/list", **params: Any) -> Request:
    return Request(request_id, method, {"_meta": meta_of(), **params})


def cancel(request_id: Any, reason: Any = None) -> Notification:
    return Notification("notifications/cancelled", {"requestId": request_id, "reason": reason})


def accepted(event: Event) -> InboundRequest:
    assert isinstance(event, RequestReceived), event
    return event.request


def refused(event: Event) -> ErrorResponse:
    assert isinstance(event, Refused), event
    return event.reply
