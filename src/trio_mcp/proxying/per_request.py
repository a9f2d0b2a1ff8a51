"""per_request_fields, declaring_tasks: the fields of requests to the server behind that describe the connection."""

from __future__ import annotations

from typing import Any

from ..protocol.conversion.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL
from ..protocol.types.extension_tasks import TASKS_EXTENSION
from ..state.requests import InboundRequest
from .downstream import Downstream
from .upstream import Upstream


def per_request_fields(request: InboundRequest, downstream: Downstream, upstream: Upstream) -> JSONObject:
    """Return the fields in which modern requests describe the connection (2026-07-28 basic, Per-request protocol
    fields)."""
    spoken, client = upstream.revision, upstream.client
    if spoken.handshake:
        return {}
    fields: JSONObject = client.requests.meta_in(spoken)
    if client.settings.forwards is not None:  # declare the capabilities of the client that can be asked now
        fields[CLIENT_CAPABILITIES] = (
            unstructure(request.capabilities, spoken)
            if request.revision.handshake
            else request.meta[CLIENT_CAPABILITIES]
        )
        if request.client_info is not None:
            fields[CLIENT_INFO] = unstructure(request.client_info, spoken)
    level: Any = downstream.log_level if request.revision.handshake else request.log_level
    if level is not None and upstream.capabilities.logging is not None:
        fields[LOG_LEVEL] = level
    return fields


def declaring_tasks(params: JSONObject) -> JSONObject:
    """Return the parameters of a modern request, which then declares the extension of tasks."""
    meta: JSONObject = params["_meta"]
    declared: JSONObject = meta[CLIENT_CAPABILITIES]
    extensions: JSONObject = {**(declared.get("extensions") or {}), TASKS_EXTENSION: {}}
    return {**params, "_meta": {**meta, CLIENT_CAPABILITIES: {**declared, "extensions": extensions}}}
