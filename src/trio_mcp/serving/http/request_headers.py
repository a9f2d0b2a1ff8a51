"""Checks of the headers that repeat what the body of a modern request says, so that gateways may route by them
(2026-07-28 streamable HTTP, Server Validation)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...jsonrpc.messages import Request
from ...protocol.errors import HEADER_MISMATCH
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.param_headers import NAMED_BY, ParamHeader, check, decoded
from ...server.served import Running, param_headers_of
from ...state.requests import InboundRequest
from ...transports.http.heads import RequestHead


def required_fields(request: Request) -> CodedError | None:
    """Return the error for a request that does not describe itself; `None` when it does (2026-07-28 basic, Per-request
    protocol fields: MUST be -32602)."""
    meta = _object(_object(request.params).get("_meta"))
    for key in (PROTOCOL_VERSION, CLIENT_CAPABILITIES):
        if key not in meta:
            return CodedError(INVALID_PARAMS, f"Invalid params: missing {key} in _meta")
    if not isinstance(meta[PROTOCOL_VERSION], str):
        return CodedError(INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} in _meta is a string")
    return None


def check_routing_headers(request: Request, head: RequestHead) -> CodedError | None:
    """Return the error when a header does not repeat what the body says, or says it twice; `None` when all do."""
    params = _object(request.params)
    wrong = _differs(head, "mcp-protocol-version", params["_meta"][PROTOCOL_VERSION]) or _differs(
        head, "mcp-method", request.method
    )
    if wrong is None and (parameter := NAMED_BY.get(request.method)) is not None:
        name = params.get(parameter)
        # Clients MUST name the task (extension tasks, Routing Headers), for whoever stands between. fastmcp 4.1 does
        # not; nobody asks servers to mind, and nothing is hidden from a gateway where nothing is said.
        may_lack = parameter == "taskId" and "mcp-name" not in head.headers
        if isinstance(name, str) and not may_lack:
            wrong = _differs(head, "mcp-name", name, encoded=True)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")


def _differs(head: RequestHead, name: str, said: str, *, encoded: bool = False) -> str | None:
    value = head.headers.get(name)
    if value == said and name not in head.repeated and not (encoded and said.startswith("=?")):
        return None
    if value is None:
        return f"the {name} header is missing"
    if name in head.repeated:  # readers of the first one and of the last one would differ
        return f"the {name} header is there more than once"
    if encoded:
        try:
            value = decoded(value)
        except ValueError as error:
            return f"the {name} header {error}"
    return None if value == said else f"the {name} header differs from the body"


def check_param_headers(running: Running, request: InboundRequest, head: RequestHead) -> CodedError | None:
    """Return the error when the headers that repeat arguments of a tool differ from them; `None` when they do not, and
    for the tools of a stand-in, which has its requests checked itself (`ModernExchange.check_headers`)."""
    if request.method.name != "tools/call":
        return None
    return param_mismatch(param_headers_of(running, request.params.get("name")), request, head)


def param_mismatch(table: Iterable[ParamHeader], request: InboundRequest, head: RequestHead) -> CodedError | None:
    """Return the error when headers that ``table`` names differ from the arguments; `None` when they do not."""
    if not table:
        return None
    wrong = check(head.headers, _object(request.params.get("arguments")), table, head.repeated)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
