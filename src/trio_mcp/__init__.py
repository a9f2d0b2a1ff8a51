"""trio-mcp: a trio-native runtime for the Model Context Protocol.

Servers: `Server`, `RequestContext`, `serve_stdio`, `serve_http`, `serve_websocket`, `serve_tcp`, `serve_unix`; in a web
framework: `http_app`. Clients: `Client`, `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`; many at once: `open_group`. Messages between them are made of the attrs classes of the specification, in
their newest shape, listed below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .auth.credentials import AuthorizationError, Bearer, ClientAuth, SignInNeeded
    from .auth.oauth_client.grants import PreregisteredClient
    from .auth.oauth_client.machine_clients import ClientCredentials, EnterpriseManaged, WorkloadIdentity
    from .auth.oauth_client.oauth import OAuth
    from .auth.resource_server.introspection import IntrospectionVerifier
    from .auth.resource_server.jwt import JWTVerifier
    from .auth.resource_server.protected import Protected
    from .auth.resource_server.verification import VerifierUnavailable
    from .auth.storage.files import FileStorage
    from .auth.storage.keyrings import KeyringStorage
    from .auth.storage.records import MemoryStorage, Storage, StorageFailed, Stored
    from .client.cache import CachePartition, Change, ResponseCache
    from .client.client import Client
    from .client.options import ClientOptions, ClientSettings, UnreadableMessage
    from .client.remote_tasks import RunningTask
    from .client.subscriptions import Changes
    from .client.timeouts import KeepAlive
    from .concurrency.time_limits import fail_after_silence, fail_after_work
    from .connecting.bad_target import BadTarget
    from .connecting.http.opening import open_http
    from .connecting.lines import open_tcp, open_unix
    from .connecting.memory import open_memory
    from .connecting.stdio import Command, open_stdio
    from .connecting.targets import Address, InMemory
    from .connecting.websocket import open_websocket
    from .hosting.catalogue import Catalogue, Entry, Watch
    from .hosting.config_files import Config, ConfigError, read_config
    from .hosting.descriptions import (
        MemberDescription,
        MemberState,
        MemberStatus,
        MemberUnavailable,
        NotInCatalogue,
        RestartPolicy,
    )
    from .hosting.group import Group, GroupTask, open_group
    from .jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation
    from .protocol.converters import NotExpressible
    from .protocol.errors import BadAnswer, CapabilityMissing, MethodUnavailable, NoWayBack
    from .protocol.meta import TraceContext
    from .protocol.revisions import REVISIONS, Revision
    from .protocol.types.content import (
        Annotations,
        AudioContent,
        BlobResourceContents,
        ContentBlock,
        EmbeddedResource,
        ImageContent,
        ResourceContents,
        ResourceLink,
        TextContent,
        TextResourceContents,
        ToolResultContent,
        ToolUseContent,
    )
    from .protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams
    from .protocol.types.input_required import InputRequest
    from .protocol.types.lifecycle import (
        ClientCapabilities,
        Elicitation,
        Icon,
        Implementation,
        Roots,
        Sampling,
        ServerCapabilities,
    )
    from .protocol.types.notifications import LogLevel, LogParams, SubscriptionFilter, log_level_rank, should_log
    from .protocol.types.prompts import (
        Completion,
        GetPromptResult,
        Prompt,
        PromptArgument,
        PromptMessage,
        PromptReference,
        ResourceTemplateReference,
    )
    from .protocol.types.resources import ReadResourceResult, Resource, ResourceTemplate
    from .protocol.types.sampling import (
        CreateMessageParams,
        CreateMessageResult,
        ModelHint,
        ModelPreferences,
        Root,
        SamplingMessage,
        ToolChoice,
    )
    from .protocol.types.tools import CallToolResult, Tool, ToolAnnotations, ToolError
    from .proxying.proxy import Proxy, proxy
    from .runtime.calls import OnProgress, Progress
    from .runtime.cancellation import CancelCause, Cancellation
    from .runtime.limits import Limits, Statistics
    from .runtime.peer import Auth, Principal, PrincipalId
    from .runtime.requests.logs import RequestLog
    from .runtime.transport import ConnectionLost, HTTPError
    from .server.client_data import ElicitAnswer
    from .server.connected_clients import ConnectedClient
    from .server.input_required import InputRequired
    from .server.kept_tasks import CallerTasks, KeptTasks, TaskContext, TaskPage
    from .server.logs import ClientLogHandler
    from .server.registration import CacheHints, PromptOptions, ResourceOptions, SamplingOptions, ToolOptions
    from .server.request_context import RequestContext
    from .server.resources import ResourceNotFound
    from .server.results import error_result, text_result
    from .server.server import Server
    from .server.worker_context import WorkerContext, WorkerTask, WorkerTasks
    from .serving.accepting import ServingOptions
    from .serving.callers import TrustedProxies
    from .serving.connections import serve_tcp, serve_unix
    from .serving.http.asgi import HTTPApp, http_app
    from .serving.http.serve import serve_http
    from .serving.process import serve_stdio
    from .serving.websocket import serve_websocket
    from .stores.memory import MemoryTaskStore
    from .stores.sqlite_store import SqliteTaskStore
    from .stores.task_store import Gap, Kept, Outcome, StoreDown, StoreFull, TaskPhase, TaskRecord, TaskStore, Uncertain
    from .tasks.settings import TaskSettings
    from .tasks.task_state import TaskCancelled, TaskState

_MODULES: Final = {
    "REVISIONS": ".protocol.revisions",
    "Address": ".connecting.targets",
    "Annotations": ".protocol.types.content",
    "AudioContent": ".protocol.types.content",
    "Auth": ".runtime.peer",
    "AuthorizationError": ".auth.credentials",
    "BadAnswer": ".protocol.errors",
    "BadTarget": ".connecting.bad_target",
    "Bearer": ".auth.credentials",
    "BlobResourceContents": ".protocol.types.content",
    "CacheHints": ".server.registration",
    "CachePartition": ".client.cache",
    "CallToolResult": ".protocol.types.tools",
    "CallerTasks": ".server.kept_tasks",
    "CancelCause": ".runtime.cancellation",
    "Cancellation": ".runtime.cancellation",
    "CapabilityMissing": ".protocol.errors",
    "Catalogue": ".hosting.catalogue",
    "Change": ".client.cache",
    "Changes": ".client.subscriptions",
    "Client": ".client.client",
    "ClientAuth": ".auth.credentials",
    "ClientCapabilities": ".protocol.types.lifecycle",
    "ClientCredentials": ".auth.oauth_client.machine_clients",
    "ClientLogHandler": ".server.logs",
    "ClientOptions": ".client.options",
    "ClientSettings": ".client.options",
    "CodedError": ".jsonrpc.errors",
    "Command": ".connecting.stdio",
    "Completion": ".protocol.types.prompts",
    "Config": ".hosting.config_files",
    "ConfigError": ".hosting.config_files",
    "ConnectedClient": ".server.connected_clients",
    "ConnectionLost": ".runtime.transport",
    "ContentBlock": ".protocol.types.content",
    "CreateMessageParams": ".protocol.types.sampling",
    "CreateMessageResult": ".protocol.types.sampling",
    "ElicitAnswer": ".server.client_data",
    "ElicitFormParams": ".protocol.types.elicitation",
    "ElicitResult": ".protocol.types.elicitation",
    "ElicitURLParams": ".protocol.types.elicitation",
    "Elicitation": ".protocol.types.lifecycle",
    "EmbeddedResource": ".protocol.types.content",
    "EnterpriseManaged": ".auth.oauth_client.machine_clients",
    "Entry": ".hosting.catalogue",
    "FileStorage": ".auth.storage.files",
    "Gap": ".stores.task_store",
    "GetPromptResult": ".protocol.types.prompts",
    "Group": ".hosting.group",
    "GroupTask": ".hosting.group",
    "HTTPApp": ".serving.http.asgi",
    "HTTPError": ".runtime.transport",
    "Icon": ".protocol.types.lifecycle",
    "ImageContent": ".protocol.types.content",
    "Implementation": ".protocol.types.lifecycle",
    "InMemory": ".connecting.targets",
    "InputRequest": ".protocol.types.input_required",
    "InputRequired": ".server.input_required",
    "IntrospectionVerifier": ".auth.resource_server.introspection",
    "JWTVerifier": ".auth.resource_server.jwt",
    "KeepAlive": ".client.timeouts",
    "Kept": ".stores.task_store",
    "KeptTasks": ".server.kept_tasks",
    "KeyringStorage": ".auth.storage.keyrings",
    "Limits": ".runtime.limits",
    "LogLevel": ".protocol.types.notifications",
    "LogParams": ".protocol.types.notifications",
    "MCPError": ".jsonrpc.errors",
    "MemberDescription": ".hosting.descriptions",
    "MemberState": ".hosting.descriptions",
    "MemberStatus": ".hosting.descriptions",
    "MemberUnavailable": ".hosting.descriptions",
    "MemoryStorage": ".auth.storage.records",
    "MemoryTaskStore": ".stores.memory",
    "MethodUnavailable": ".protocol.errors",
    "ModelHint": ".protocol.types.sampling",
    "ModelPreferences": ".protocol.types.sampling",
    "NoWayBack": ".protocol.errors",
    "NotExpressible": ".protocol.converters",
    "NotInCatalogue": ".hosting.descriptions",
    "NotSerializable": ".jsonrpc.errors",
    "OAuth": ".auth.oauth_client.oauth",
    "OnProgress": ".runtime.calls",
    "Outcome": ".stores.task_store",
    "PeerError": ".jsonrpc.errors",
    "PreregisteredClient": ".auth.oauth_client.grants",
    "Principal": ".runtime.peer",
    "PrincipalId": ".runtime.peer",
    "Progress": ".runtime.calls",
    "Prompt": ".protocol.types.prompts",
    "PromptArgument": ".protocol.types.prompts",
    "PromptMessage": ".protocol.types.prompts",
    "PromptOptions": ".server.registration",
    "PromptReference": ".protocol.types.prompts",
    "Protected": ".auth.resource_server.protected",
    "ProtocolViolation": ".jsonrpc.errors",
    "Proxy": ".proxying.proxy",
    "ReadResourceResult": ".protocol.types.resources",
    "RequestContext": ".server.request_context",
    "RequestLog": ".runtime.requests.logs",
    "Resource": ".protocol.types.resources",
    "ResourceContents": ".protocol.types.content",
    "ResourceLink": ".protocol.types.content",
    "ResourceNotFound": ".server.resources",
    "ResourceOptions": ".server.registration",
    "ResourceTemplate": ".protocol.types.resources",
    "ResourceTemplateReference": ".protocol.types.prompts",
    "ResponseCache": ".client.cache",
    "RestartPolicy": ".hosting.descriptions",
    "Revision": ".protocol.revisions",
    "Root": ".protocol.types.sampling",
    "Roots": ".protocol.types.lifecycle",
    "RunningTask": ".client.remote_tasks",
    "Sampling": ".protocol.types.lifecycle",
    "SamplingMessage": ".protocol.types.sampling",
    "SamplingOptions": ".server.registration",
    "Server": ".server.server",
    "ServerCapabilities": ".protocol.types.lifecycle",
    "ServingOptions": ".serving.accepting",
    "SignInNeeded": ".auth.credentials",
    "SqliteTaskStore": ".stores.sqlite_store",
    "Statistics": ".runtime.limits",
    "Storage": ".auth.storage.records",
    "StorageFailed": ".auth.storage.records",
    "StoreDown": ".stores.task_store",
    "StoreFull": ".stores.task_store",
    "Stored": ".auth.storage.records",
    "SubscriptionFilter": ".protocol.types.notifications",
    "TaskCancelled": ".tasks.task_state",
    "TaskContext": ".server.kept_tasks",
    "TaskPage": ".server.kept_tasks",
    "TaskPhase": ".stores.task_store",
    "TaskRecord": ".stores.task_store",
    "TaskSettings": ".tasks.settings",
    "TaskState": ".tasks.task_state",
    "TaskStore": ".stores.task_store",
    "TextContent": ".protocol.types.content",
    "TextResourceContents": ".protocol.types.content",
    "Tool": ".protocol.types.tools",
    "ToolAnnotations": ".protocol.types.tools",
    "ToolChoice": ".protocol.types.sampling",
    "ToolError": ".protocol.types.tools",
    "ToolOptions": ".server.registration",
    "ToolResultContent": ".protocol.types.content",
    "ToolUseContent": ".protocol.types.content",
    "TraceContext": ".protocol.meta",
    "TrustedProxies": ".serving.callers",
    "Uncertain": ".stores.task_store",
    "UnreadableMessage": ".client.options",
    "VerifierUnavailable": ".auth.resource_server.verification",
    "Watch": ".hosting.catalogue",
    "WorkerContext": ".server.worker_context",
    "WorkerTask": ".server.worker_context",
    "WorkerTasks": ".server.worker_context",
    "WorkloadIdentity": ".auth.oauth_client.machine_clients",
    "error_result": ".server.results",
    "fail_after_silence": ".concurrency.time_limits",
    "fail_after_work": ".concurrency.time_limits",
    "http_app": ".serving.http.asgi",
    "log_level_rank": ".protocol.types.notifications",
    "open_group": ".hosting.group",
    "open_http": ".connecting.http.opening",
    "open_memory": ".connecting.memory",
    "open_stdio": ".connecting.stdio",
    "open_tcp": ".connecting.lines",
    "open_unix": ".connecting.lines",
    "open_websocket": ".connecting.websocket",
    "proxy": ".proxying.proxy",
    "read_config": ".hosting.config_files",
    "serve_http": ".serving.http.serve",
    "serve_stdio": ".serving.process",
    "serve_tcp": ".serving.connections",
    "serve_unix": ".serving.connections",
    "serve_websocket": ".serving.websocket",
    "should_log": ".protocol.types.notifications",
    "text_result": ".server.results",
}
"""Modules of all names, imported when a name is first asked for: hosts start servers by the dozen, a server on stdio
needs neither a client nor a network, and a client needs no server."""

__all__ = [
    "REVISIONS",
    "Address",
    "Annotations",
    "AudioContent",
    "Auth",
    "AuthorizationError",
    "BadAnswer",
    "BadTarget",
    "Bearer",
    "BlobResourceContents",
    "CacheHints",
    "CachePartition",
    "CallToolResult",
    "CallerTasks",
    "CancelCause",
    "Cancellation",
    "CapabilityMissing",
    "Catalogue",
    "Change",
    "Changes",
    "Client",
    "ClientAuth",
    "ClientCapabilities",
    "ClientCredentials",
    "ClientLogHandler",
    "ClientOptions",
    "ClientSettings",
    "CodedError",
    "Command",
    "Completion",
    "Config",
    "ConfigError",
    "ConnectedClient",
    "ConnectionLost",
    "ContentBlock",
    "CreateMessageParams",
    "CreateMessageResult",
    "ElicitAnswer",
    "ElicitFormParams",
    "ElicitResult",
    "ElicitURLParams",
    "Elicitation",
    "EmbeddedResource",
    "EnterpriseManaged",
    "Entry",
    "FileStorage",
    "Gap",
    "GetPromptResult",
    "Group",
    "GroupTask",
    "HTTPApp",
    "HTTPError",
    "Icon",
    "ImageContent",
    "Implementation",
    "InMemory",
    "InputRequest",
    "InputRequired",
    "IntrospectionVerifier",
    "JWTVerifier",
    "KeepAlive",
    "Kept",
    "KeptTasks",
    "KeyringStorage",
    "Limits",
    "LogLevel",
    "LogParams",
    "MCPError",
    "MemberDescription",
    "MemberState",
    "MemberStatus",
    "MemberUnavailable",
    "MemoryStorage",
    "MemoryTaskStore",
    "MethodUnavailable",
    "ModelHint",
    "ModelPreferences",
    "NoWayBack",
    "NotExpressible",
    "NotInCatalogue",
    "NotSerializable",
    "OAuth",
    "OnProgress",
    "Outcome",
    "PeerError",
    "PreregisteredClient",
    "Principal",
    "PrincipalId",
    "Progress",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptOptions",
    "PromptReference",
    "Protected",
    "ProtocolViolation",
    "Proxy",
    "ReadResourceResult",
    "RequestContext",
    "RequestLog",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "ResourceOptions",
    "ResourceTemplate",
    "ResourceTemplateReference",
    "ResponseCache",
    "RestartPolicy",
    "Revision",
    "Root",
    "Roots",
    "RunningTask",
    "Sampling",
    "SamplingMessage",
    "SamplingOptions",
    "Server",
    "ServerCapabilities",
    "ServingOptions",
    "SignInNeeded",
    "SqliteTaskStore",
    "Statistics",
    "Storage",
    "StorageFailed",
    "StoreDown",
    "StoreFull",
    "Stored",
    "SubscriptionFilter",
    "TaskCancelled",
    "TaskContext",
    "TaskPage",
    "TaskPhase",
    "TaskRecord",
    "TaskSettings",
    "TaskState",
    "TaskStore",
    "TextContent",
    "TextResourceContents",
    "Tool",
    "ToolAnnotations",
    "ToolChoice",
    "ToolError",
    "ToolOptions",
    "ToolResultContent",
    "ToolUseContent",
    "TraceContext",
    "TrustedProxies",
    "Uncertain",
    "UnreadableMessage",
    "VerifierUnavailable",
    "Watch",
    "WorkerContext",
    "WorkerTask",
    "WorkerTasks",
    "WorkloadIdentity",
    "error_result",
    "fail_after_silence",
    "fail_after_work",
    "http_app",
    "log_level_rank",
    "open_group",
    "open_http",
    "open_memory",
    "open_stdio",
    "open_tcp",
    "open_unix",
    "open_websocket",
    "proxy",
    "read_config",
    "serve_http",
    "serve_stdio",
    "serve_tcp",
    "serve_unix",
    "serve_websocket",
    "should_log",
    "text_result",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
