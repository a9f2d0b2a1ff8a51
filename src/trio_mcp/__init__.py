"""trio-mcp: a trio-native runtime for the Model Context Protocol.

Servers: `Server`, `RequestContext`, `serve_stdio`, `serve_http`, `serve_websocket`, `serve_tcp`, `serve_unix`; in a web
framework: `http_app`. Clients: `Client`, `open_stdio`, `open_http`, `open_websocket`, `open_tcp`, `open_unix`,
`open_memory`; many at once: `open_group`. Messages between them are made of the attrs classes of the specification, in
their newest shape, listed below.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .auth.credentials import AuthorizationError, Bearer, ClientAuth, SignInNeeded
    from .auth.oauth_client.authorization_code import OAuth
    from .auth.oauth_client.grants import PreregisteredClient
    from .auth.oauth_client.machine_clients import ClientCredentials, EnterpriseManaged, WorkloadIdentity
    from .auth.resource_server.introspection import IntrospectionVerifier
    from .auth.resource_server.jwt import JWTVerifier
    from .auth.resource_server.protected import Protected
    from .auth.resource_server.verification import VerifierUnavailable
    from .auth.storage.files import FileStorage
    from .auth.storage.keyrings import KeyringStorage
    from .auth.storage.records import MemoryStorage, Storage, StorageFailed, Stored
    from .client.cache import CachePartition, Change, ResponseCache
    from .client.client import Client
    from .client.confirming import CallEnding, confirm_cancels
    from .client.current_call import CallHandlers, CurrentCall, current_call
    from .client.options import ClientOptions, ClientSettings, UnreadableMessage
    from .client.remote_tasks import RunningTask
    from .client.subscriptions import Changes
    from .client.timeouts import KeepAlive
    from .concurrency.interrupts import cancel_on_interrupt
    from .concurrency.time_limits import fail_after_silence, fail_after_work
    from .connecting.bad_target import BadTarget
    from .connecting.cards import DiscoveryFailed, FoundServer, discover, read_card
    from .connecting.http.opening import open_http
    from .connecting.lines import open_tcp, open_unix
    from .connecting.memory import open_memory
    from .connecting.stdio import Command, open_stdio
    from .connecting.targets import Address, InMemory
    from .connecting.websocket import open_websocket
    from .fleet.storage.memory import Memory
    from .fleet.storage.redis.storage import Redis
    from .fleet.storage.sqlite.storage import SQLite
    from .hosting.catalogue import Catalogue, CatalogueEntry, Watch
    from .hosting.config_files import Config, ConfigError, read_config
    from .hosting.descriptions import (
        MemberDescription,
        MemberState,
        MemberStatus,
        MemberUnavailable,
        NotInCatalogue,
        RestartPolicy,
    )
    from .hosting.group import Group, GroupSkill, GroupTask, open_group
    from .hosting.member_context import current_member
    from .jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation
    from .middleware import audit_log, concurrency_limit, rate_limit, time_limit
    from .openapi.document import APIOperation
    from .openapi.tools import from_openapi
    from .protocol.cancel_acknowledged import CancelAcknowledged
    from .protocol.converters import NotExpressible
    from .protocol.errors import BadAnswer, CapabilityMissing, MethodUnavailable, NoBackChannel
    from .protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from .protocol.meta import TraceContext
    from .protocol.revisions import REVISIONS, Revision
    from .protocol.types.apps import UI, AppPolicy
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
        UnknownContent,
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
    from .protocol.types.server_cards import CardRemote, ServerCard, SourceRepository
    from .protocol.types.skills import Skill, SkillFile
    from .protocol.types.tools import CallToolResult, Tool, ToolAnnotations, ToolError
    from .proxying.gateway import Gateway, gateway
    from .proxying.proxy import Proxy, proxy
    from .proxying.tenants import ALL_QUESTIONS
    from .recording.recorder import Recorder
    from .runtime.calls import OnProgress, Progress
    from .runtime.cancellation import CancelCause, Cancellation
    from .runtime.limits import Limits, Statistics
    from .runtime.peer import Auth, Principal, PrincipalId
    from .runtime.requests.logs import RequestLog
    from .runtime.transport import ConnectionLost, HTTPError
    from .server.calling.media import Audio, File, Image
    from .server.calling.provider import Provide
    from .server.calling.results import error_result, text_result
    from .server.connected_clients import ConnectedClient
    from .server.context.client_data import ElicitAnswer
    from .server.context.input_required import InputRequired
    from .server.context.logs import ClientLogHandler
    from .server.context.request_context import RequestContext
    from .server.context.tasks import CallerTasks, StoredTasks, TaskContext, TaskPage
    from .server.context.worker_context import WorkerContext, WorkerTask, WorkerTasks
    from .server.middleware import Next, ServerRequest
    from .server.offers.apps import Apps
    from .server.offers.resources import ResourceNotFound
    from .server.offers.skill_offers import SkillOptions
    from .server.offers.skills import Skills
    from .server.options import CacheHints, PromptOptions, ResourceOptions, SamplingOptions, ToolOptions
    from .server.server import Server
    from .serving.accepting import ServingOptions
    from .serving.callers import TrustedProxies
    from .serving.connections import serve_tcp, serve_unix
    from .serving.http.asgi import HTTPApp, http_app
    from .serving.http.cards import Card
    from .serving.http.routes import Route, RouteRequest, RouteResponse
    from .serving.http.serve import serve_http
    from .serving.process import serve_stdio
    from .serving.websocket import serve_websocket
    from .skills.loading import LoadedSkill, SkillChanged
    from .stores.memory import MemoryTaskStore
    from .stores.record_codec import RecordCodec, StoredRecord
    from .stores.shared import (
        ChangeHint,
        ChangeLog,
        ChangesSince,
        Courier,
        EventLog,
        RateLimits,
        ReplayGuard,
        Replica,
        SessionDirectory,
        SharedStorage,
        StoredEvents,
        StoredSession,
        StoredStream,
    )
    from .stores.sqlite_store import SQLiteTaskStore
    from .stores.task_store import (
        HINTS_LOST,
        HintQueues,
        HintsLost,
        Outcome,
        StoreDown,
        StoredTask,
        StoreFull,
        TaskPhase,
        TaskRecord,
        TaskStore,
        Uncertain,
        UnreadableRecord,
        new_mark,
    )
    from .tasks.settings import TaskSettings
    from .tasks.task_state import TaskCancelled, TaskState
    from .transports.process_tree import run_process_tree

_NAMES: Final = {
    ".auth.credentials": "AuthorizationError Bearer ClientAuth SignInNeeded",
    ".auth.oauth_client.authorization_code": "OAuth",
    ".auth.oauth_client.grants": "PreregisteredClient",
    ".auth.oauth_client.machine_clients": "ClientCredentials EnterpriseManaged WorkloadIdentity",
    ".auth.resource_server.introspection": "IntrospectionVerifier",
    ".auth.resource_server.jwt": "JWTVerifier",
    ".auth.resource_server.protected": "Protected",
    ".auth.resource_server.verification": "VerifierUnavailable",
    ".auth.storage.files": "FileStorage",
    ".auth.storage.keyrings": "KeyringStorage",
    ".auth.storage.records": "MemoryStorage Storage StorageFailed Stored",
    ".client.cache": "CachePartition Change ResponseCache",
    ".client.client": "Client",
    ".client.confirming": "CallEnding confirm_cancels",
    ".client.current_call": "CallHandlers CurrentCall current_call",
    ".client.options": "ClientOptions ClientSettings UnreadableMessage",
    ".client.remote_tasks": "RunningTask",
    ".client.subscriptions": "Changes",
    ".client.timeouts": "KeepAlive",
    ".concurrency.interrupts": "cancel_on_interrupt",
    ".concurrency.time_limits": "fail_after_silence fail_after_work",
    ".connecting.bad_target": "BadTarget",
    ".connecting.cards": "DiscoveryFailed FoundServer discover read_card",
    ".connecting.http.opening": "open_http",
    ".connecting.lines": "open_tcp open_unix",
    ".connecting.memory": "open_memory",
    ".connecting.stdio": "Command open_stdio",
    ".connecting.targets": "Address InMemory",
    ".connecting.websocket": "open_websocket",
    ".fleet.storage.memory": "Memory",
    ".fleet.storage.redis.storage": "Redis",
    ".fleet.storage.sqlite.storage": "SQLite",
    ".hosting.catalogue": "Catalogue CatalogueEntry Watch",
    ".hosting.config_files": "Config ConfigError read_config",
    ".hosting.descriptions": (
        "MemberDescription MemberState MemberStatus MemberUnavailable NotInCatalogue RestartPolicy"
    ),
    ".hosting.group": "Group GroupSkill GroupTask open_group",
    ".hosting.member_context": "current_member",
    ".jsonrpc.errors": "CodedError MCPError NotSerializable PeerError ProtocolViolation",
    ".middleware": "audit_log concurrency_limit rate_limit time_limit",
    ".openapi.document": "APIOperation",
    ".openapi.tools": "from_openapi",
    ".protocol.cancel_acknowledged": "CancelAcknowledged",
    ".protocol.converters": "NotExpressible",
    ".protocol.errors": "BadAnswer CapabilityMissing MethodUnavailable NoBackChannel",
    ".protocol.extensions": "Extension ExtensionNotification ExtensionRequest",
    ".protocol.meta": "TraceContext",
    ".protocol.revisions": "REVISIONS Revision",
    ".protocol.types.apps": "AppPolicy UI",
    ".protocol.types.content": (
        "Annotations AudioContent BlobResourceContents ContentBlock EmbeddedResource ImageContent ResourceContents "
        "ResourceLink TextContent TextResourceContents ToolResultContent ToolUseContent UnknownContent"
    ),
    ".protocol.types.elicitation": "ElicitFormParams ElicitResult ElicitURLParams",
    ".protocol.types.input_required": "InputRequest",
    ".protocol.types.lifecycle": "ClientCapabilities Elicitation Icon Implementation Roots Sampling ServerCapabilities",
    ".protocol.types.notifications": "LogLevel LogParams SubscriptionFilter log_level_rank should_log",
    ".protocol.types.prompts": (
        "Completion GetPromptResult Prompt PromptArgument PromptMessage PromptReference ResourceTemplateReference"
    ),
    ".protocol.types.resources": "ReadResourceResult Resource ResourceTemplate",
    ".protocol.types.sampling": (
        "CreateMessageParams CreateMessageResult ModelHint ModelPreferences Root SamplingMessage ToolChoice"
    ),
    ".protocol.types.server_cards": "CardRemote ServerCard SourceRepository",
    ".protocol.types.skills": "Skill SkillFile",
    ".protocol.types.tools": "CallToolResult Tool ToolAnnotations ToolError",
    ".proxying.gateway": "Gateway gateway",
    ".proxying.proxy": "Proxy proxy",
    ".proxying.tenants": "ALL_QUESTIONS",
    ".recording.recorder": "Recorder",
    ".runtime.calls": "OnProgress Progress",
    ".runtime.cancellation": "CancelCause Cancellation",
    ".runtime.limits": "Limits Statistics",
    ".runtime.peer": "Auth Principal PrincipalId",
    ".runtime.requests.logs": "RequestLog",
    ".runtime.transport": "ConnectionLost HTTPError",
    ".server.calling.media": "Audio File Image",
    ".server.calling.provider": "Provide",
    ".server.calling.results": "error_result text_result",
    ".server.connected_clients": "ConnectedClient",
    ".server.context.client_data": "ElicitAnswer",
    ".server.context.input_required": "InputRequired",
    ".server.context.logs": "ClientLogHandler",
    ".server.context.request_context": "RequestContext",
    ".server.context.tasks": "CallerTasks StoredTasks TaskContext TaskPage",
    ".server.context.worker_context": "WorkerContext WorkerTask WorkerTasks",
    ".server.middleware": "Next ServerRequest",
    ".server.offers.apps": "Apps",
    ".server.offers.resources": "ResourceNotFound",
    ".server.offers.skill_offers": "SkillOptions",
    ".server.offers.skills": "Skills",
    ".server.options": "CacheHints PromptOptions ResourceOptions SamplingOptions ToolOptions",
    ".server.server": "Server",
    ".serving.accepting": "ServingOptions",
    ".serving.callers": "TrustedProxies",
    ".serving.connections": "serve_tcp serve_unix",
    ".serving.http.asgi": "HTTPApp http_app",
    ".serving.http.cards": "Card",
    ".serving.http.routes": "Route RouteRequest RouteResponse",
    ".serving.http.serve": "serve_http",
    ".serving.process": "serve_stdio",
    ".serving.websocket": "serve_websocket",
    ".skills.loading": "LoadedSkill SkillChanged",
    ".stores.memory": "MemoryTaskStore",
    ".stores.record_codec": "RecordCodec StoredRecord",
    ".stores.shared": (
        "ChangeHint ChangeLog ChangesSince Courier EventLog RateLimits ReplayGuard Replica SessionDirectory "
        "SharedStorage StoredEvents StoredSession StoredStream"
    ),
    ".stores.sqlite_store": "SQLiteTaskStore",
    ".stores.task_store": (
        "HINTS_LOST HintQueues HintsLost Outcome StoreDown StoreFull StoredTask TaskPhase TaskRecord TaskStore "
        "Uncertain UnreadableRecord new_mark"
    ),
    ".tasks.settings": "TaskSettings",
    ".tasks.task_state": "TaskCancelled TaskState",
    ".transports.process_tree": "run_process_tree",
}
"""The names of each module, which is imported when one of them is first asked for: hosts start servers by the dozen, a
server on stdio needs neither a client nor a network, and a client needs no server."""
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "ALL_QUESTIONS",
    "HINTS_LOST",
    "REVISIONS",
    "UI",
    "APIOperation",
    "Address",
    "Annotations",
    "AppPolicy",
    "Apps",
    "Audio",
    "AudioContent",
    "Auth",
    "AuthorizationError",
    "BadAnswer",
    "BadTarget",
    "Bearer",
    "BlobResourceContents",
    "CacheHints",
    "CachePartition",
    "CallEnding",
    "CallHandlers",
    "CallToolResult",
    "CallerTasks",
    "CancelAcknowledged",
    "CancelCause",
    "Cancellation",
    "CapabilityMissing",
    "Card",
    "CardRemote",
    "Catalogue",
    "CatalogueEntry",
    "Change",
    "ChangeHint",
    "ChangeLog",
    "Changes",
    "ChangesSince",
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
    "Courier",
    "CreateMessageParams",
    "CreateMessageResult",
    "CurrentCall",
    "DiscoveryFailed",
    "ElicitAnswer",
    "ElicitFormParams",
    "ElicitResult",
    "ElicitURLParams",
    "Elicitation",
    "EmbeddedResource",
    "EnterpriseManaged",
    "EventLog",
    "Extension",
    "ExtensionNotification",
    "ExtensionRequest",
    "File",
    "FileStorage",
    "FoundServer",
    "Gateway",
    "GetPromptResult",
    "Group",
    "GroupSkill",
    "GroupTask",
    "HTTPApp",
    "HTTPError",
    "HintQueues",
    "HintsLost",
    "Icon",
    "Image",
    "ImageContent",
    "Implementation",
    "InMemory",
    "InputRequest",
    "InputRequired",
    "IntrospectionVerifier",
    "JWTVerifier",
    "KeepAlive",
    "KeyringStorage",
    "Limits",
    "LoadedSkill",
    "LogLevel",
    "LogParams",
    "MCPError",
    "MemberDescription",
    "MemberState",
    "MemberStatus",
    "MemberUnavailable",
    "Memory",
    "MemoryStorage",
    "MemoryTaskStore",
    "MethodUnavailable",
    "ModelHint",
    "ModelPreferences",
    "Next",
    "NoBackChannel",
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
    "Provide",
    "Proxy",
    "RateLimits",
    "ReadResourceResult",
    "RecordCodec",
    "Recorder",
    "Redis",
    "ReplayGuard",
    "Replica",
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
    "Route",
    "RouteRequest",
    "RouteResponse",
    "RunningTask",
    "SQLite",
    "SQLiteTaskStore",
    "Sampling",
    "SamplingMessage",
    "SamplingOptions",
    "Server",
    "ServerCapabilities",
    "ServerCard",
    "ServerRequest",
    "ServingOptions",
    "SessionDirectory",
    "SharedStorage",
    "SignInNeeded",
    "Skill",
    "SkillChanged",
    "SkillFile",
    "SkillOptions",
    "Skills",
    "SourceRepository",
    "Statistics",
    "Storage",
    "StorageFailed",
    "StoreDown",
    "StoreFull",
    "Stored",
    "StoredEvents",
    "StoredRecord",
    "StoredSession",
    "StoredStream",
    "StoredTask",
    "StoredTasks",
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
    "UnknownContent",
    "UnreadableMessage",
    "UnreadableRecord",
    "VerifierUnavailable",
    "Watch",
    "WorkerContext",
    "WorkerTask",
    "WorkerTasks",
    "WorkloadIdentity",
    "audit_log",
    "cancel_on_interrupt",
    "concurrency_limit",
    "confirm_cancels",
    "current_call",
    "current_member",
    "discover",
    "error_result",
    "fail_after_silence",
    "fail_after_work",
    "from_openapi",
    "gateway",
    "http_app",
    "log_level_rank",
    "new_mark",
    "open_group",
    "open_http",
    "open_memory",
    "open_stdio",
    "open_tcp",
    "open_unix",
    "open_websocket",
    "proxy",
    "rate_limit",
    "read_card",
    "read_config",
    "run_process_tree",
    "serve_http",
    "serve_stdio",
    "serve_tcp",
    "serve_unix",
    "serve_websocket",
    "should_log",
    "text_result",
    "time_limit",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if name[0] != "_":
            from .mistakes import raise_no_name

            raise_no_name(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_imported(_MODULES[name]), name)
    return value


def _imported(module: str) -> Any:
    """Import a module while the garbage collector is off: nearly all objects of a module stay, and the collector would
    look through them a dozen times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module, __name__)
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
