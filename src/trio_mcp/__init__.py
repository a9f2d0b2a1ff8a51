"""trio-mcp: a trio-native runtime for the Model Context Protocol.

Servers: `Server`, `RequestContext`, `run`, `serve_stdio`, `serve_http`, `serve_websocket`, `serve_tcp`, `serve_unix`;
in a web framework: `http_app`. Clients: `Client`, `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`. The rest is in `trio_mcp.types` (values of the specification, classes that you receive or annotate),
`trio_mcp.auth`, `trio_mcp.stores`, `trio_mcp.hosting` (many servers), `trio_mcp.testing`, and, for programs that don't
run trio, `trio_mcp.aio` and `trio_mcp.blocking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .client.cache import ResponseCache
    from .client.client import Client
    from .client.confirming import confirm_cancels
    from .client.current_call import current_call
    from .client.opening import open_client
    from .client.timeouts import KeepAlive
    from .concurrency.contexts import cancel_on_interrupt
    from .concurrency.time_limits import fail_after_silence, fail_after_work
    from .connecting.bad_target import BadTarget
    from .connecting.http.opening import open_http
    from .connecting.lines import open_tcp, open_unix
    from .connecting.memory import open_memory
    from .connecting.stdio import Command, open_stdio
    from .connecting.targets import Address, InMemory
    from .connecting.websocket import open_websocket
    from .fleet.storage.memory import MemoryStorage
    from .fleet.storage.redis.storage import RedisStorage
    from .fleet.storage.sqlite.storage import SQLiteStorage
    from .jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation
    from .middleware import audit_log, concurrency_limit, rate_limit, time_limit
    from .openapi.tools import from_openapi
    from .protocol.cancel_acknowledged import CancelAcknowledged
    from .protocol.converters import NotExpressible
    from .protocol.errors import BadAnswer, CapabilityMissing, MethodUnavailable, NoBackChannel
    from .protocol.param_headers import Header
    from .protocol.types.apps import UI, AppPolicy
    from .protocol.types.tools import ToolError
    from .proxying.gateway import gateway
    from .proxying.proxy import proxy
    from .recording.recorder import Recorder
    from .runtime.calls import Progress
    from .runtime.cancellation import CancelCause, Cancellation
    from .runtime.limits import Limits
    from .runtime.transport import ConnectionLost, HTTPError, Transport
    from .server.calling.media import Audio, File, Image
    from .server.calling.provided import Provide
    from .server.calling.results import error_result, text_result
    from .server.context.input_required import InputRequired
    from .server.context.request_context import ClientLogHandler, RequestContext
    from .server.context.worker_context import WorkerContext
    from .server.large_results import keep_large_results
    from .server.middleware import Next, ServerRequest
    from .server.offers.apps import Apps
    from .server.offers.resources import ResourceNotFound
    from .server.offers.skills import Skills
    from .server.options import CacheHints
    from .server.server import Server
    from .serving.callers import TrustedProxies
    from .serving.connections import serve_tcp, serve_unix
    from .serving.http.asgi import http_app
    from .serving.http.cards import Card
    from .serving.http.routes import RouteRequest, RouteResponse
    from .serving.http.serve import serve_http
    from .serving.process import serve_stdio, serve_transport
    from .serving.running import run
    from .serving.websocket import serve_websocket
    from .skills.loading import SkillChanged
    from .tasks.records import TaskSettings
    from .tasks.task_state import TaskCancelled
    from .transports.process import run_process_tree

# fmt: off
_NAMES: Final = {
    ".client.cache": "ResponseCache", ".client.client": "Client", ".client.confirming": "confirm_cancels",
    ".client.current_call": "current_call", ".client.opening": "open_client", ".client.timeouts": "KeepAlive",
    ".concurrency.contexts": "cancel_on_interrupt", ".concurrency.time_limits": "fail_after_silence fail_after_work",
    ".connecting.bad_target": "BadTarget", ".connecting.http.opening": "open_http",
    ".connecting.lines": "open_tcp open_unix", ".connecting.memory": "open_memory",
    ".connecting.stdio": "Command open_stdio", ".connecting.targets": "Address InMemory",
    ".connecting.websocket": "open_websocket", ".fleet.storage.memory": "MemoryStorage",
    ".fleet.storage.redis.storage": "RedisStorage", ".fleet.storage.sqlite.storage": "SQLiteStorage",
    ".jsonrpc.errors": "CodedError MCPError NotSerializable PeerError ProtocolViolation",
    ".middleware": "audit_log concurrency_limit rate_limit time_limit", ".openapi.tools": "from_openapi",
    ".protocol.cancel_acknowledged": "CancelAcknowledged", ".protocol.converters": "NotExpressible",
    ".protocol.errors": "BadAnswer CapabilityMissing MethodUnavailable NoBackChannel",
    ".protocol.param_headers": "Header", ".protocol.types.apps": "UI AppPolicy", ".protocol.types.tools": "ToolError",
    ".proxying.gateway": "gateway", ".proxying.proxy": "proxy", ".recording.recorder": "Recorder",
    ".runtime.calls": "Progress", ".runtime.cancellation": "CancelCause Cancellation", ".runtime.limits": "Limits",
    ".runtime.transport": "ConnectionLost HTTPError Transport", ".server.calling.media": "Audio File Image",
    ".server.calling.provided": "Provide", ".server.calling.results": "error_result text_result",
    ".server.context.input_required": "InputRequired",
    ".server.context.request_context": "ClientLogHandler RequestContext",
    ".server.context.worker_context": "WorkerContext", ".server.large_results": "keep_large_results",
    ".server.middleware": "Next ServerRequest", ".server.offers.apps": "Apps",
    ".server.offers.resources": "ResourceNotFound", ".server.offers.skills": "Skills", ".server.options": "CacheHints",
    ".server.server": "Server", ".serving.callers": "TrustedProxies", ".serving.connections": "serve_tcp serve_unix",
    ".serving.http.asgi": "http_app", ".serving.http.cards": "Card",
    ".serving.http.routes": "RouteRequest RouteResponse", ".serving.http.serve": "serve_http",
    ".serving.process": "serve_stdio serve_transport", ".serving.running": "run",
    ".serving.websocket": "serve_websocket", ".skills.loading": "SkillChanged", ".tasks.records": "TaskSettings",
    ".tasks.task_state": "TaskCancelled", ".transports.process": "run_process_tree",
}
"""The public names by module. A module is imported when one of its names is first used: hosts start many servers, a
server on stdio needs neither a client nor a network, and a client needs no server."""
_NAMESPACES: Final = ("aio", "auth", "blocking", "hosting", "stores", "testing", "types")
__all__ = [
    "UI", "Address", "AppPolicy", "Apps", "Audio", "BadAnswer", "BadTarget", "CacheHints", "CancelAcknowledged",
    "CancelCause", "Cancellation", "CapabilityMissing", "Card", "Client", "ClientLogHandler", "CodedError", "Command",
    "ConnectionLost", "File", "HTTPError", "Header", "Image", "InMemory", "InputRequired", "KeepAlive", "Limits",
    "MCPError", "MemoryStorage", "MethodUnavailable", "Next", "NoBackChannel", "NotExpressible", "NotSerializable",
    "PeerError", "Progress", "ProtocolViolation", "Provide", "Recorder", "RedisStorage", "RequestContext",
    "ResourceNotFound", "ResponseCache", "RouteRequest", "RouteResponse", "SQLiteStorage", "Server", "ServerRequest",
    "SkillChanged", "Skills", "TaskCancelled", "TaskSettings", "ToolError", "Transport", "TrustedProxies",
    "WorkerContext", "audit_log", "cancel_on_interrupt", "concurrency_limit", "confirm_cancels", "current_call",
    "error_result", "fail_after_silence", "fail_after_work", "from_openapi", "gateway", "http_app",
    "keep_large_results", "open_client", "open_http", "open_memory", "open_stdio", "open_tcp", "open_unix",
    "open_websocket", "proxy", "rate_limit", "run", "run_process_tree", "serve_http", "serve_stdio", "serve_tcp",
    "serve_transport", "serve_unix", "serve_websocket", "text_result", "time_limit",
]
# fmt: on

if not TYPE_CHECKING:  # hide `__getattr__` from type checkers, because they report unknown names themselves

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            from importlib import import_module

            return import_module(f".{name}", __name__)
        if name[0] != "_" and name not in __all__:
            from .mistakes import raise_no_name

            raise_no_name(name)
        from .lazy import lazy_name

        return lazy_name(globals(), _NAMES, name)

    def __dir__() -> list[str]:
        return [*__all__, *_NAMESPACES]
