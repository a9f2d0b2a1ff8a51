"""Values of the specification, and classes that you receive or annotate: option dictionaries, callbacks, results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .client.cache import CachePartition, Change, ChangeKind
    from .client.confirming import CallEnding, EndState
    from .client.current_call import CallHandlers, CurrentCall
    from .client.options import (
        ChangedList,
        ClientOptions,
        ClientSettings,
        ElicitationHandler,
        RootsHandler,
        SamplingHandler,
        UnreadableMessage,
        UrlElicitationHandler,
    )
    from .client.remote_tasks import RunningTask
    from .client.subscriptions import Changes
    from .connecting.targets import Target
    from .jsonrpc.messages import RequestId
    from .openapi.document import APIOperation
    from .protocol.cancel_acknowledged import CancelSettings
    from .protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from .protocol.fields import JSONObject
    from .protocol.meta import TraceContext
    from .protocol.methods import Sender
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
        Role,
        TextContent,
        TextResourceContents,
        ToolResultContent,
        ToolUseContent,
        UnknownContent,
    )
    from .protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams
    from .protocol.types.input_required import InputRequest
    from .protocol.types.lifecycle import (
        CacheScope,
        ClientCapabilities,
        Elicitation,
        Icon,
        Implementation,
        PromptsCapability,
        ResourcesCapability,
        Roots,
        Sampling,
        ServerCapabilities,
        TasksCapability,
        ToolsCapability,
    )
    from .protocol.types.notifications import LogLevel, LogParams, SubscriptionFilter, log_level_rank, should_log
    from .protocol.types.offers import (
        Completion,
        GetPromptResult,
        Prompt,
        PromptArgument,
        PromptMessage,
        PromptReference,
        ReadResourceResult,
        Resource,
        ResourceTemplate,
        ResourceTemplateReference,
    )
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
    from .protocol.types.tools import CallToolResult, TaskMetadata, TaskStatus, Tool, ToolAnnotations, ToolExecution
    from .proxying.gateway import Gateway
    from .proxying.proxy import Proxy, ProxyTarget
    from .proxying.tenants import ALL_QUESTIONS, OpenUpstream
    from .runtime.calls import OnProgress
    from .runtime.limits import Statistics
    from .runtime.requests.reports import RequestLog
    from .server.connected_clients import ConnectedClient
    from .server.context.client_data import ElicitAnswer
    from .server.context.state import CallerState, StateValue, WorkerState
    from .server.context.tasks import (
        CallerTasks,
        StoredTasks,
        TaskContext,
        TaskOutcome,
        TaskPage,
        WorkerTask,
        WorkerTasks,
    )
    from .server.context.worker_context import WorkerLog
    from .server.middleware import MiddlewareFunction
    from .server.offering import RootsChanged
    from .server.offers.apps import AppsSettings
    from .server.offers.skills import SkillOptions
    from .server.options import PromptOptions, ResourceOptions, SamplingOptions, ToolOptions, Visible
    from .server.servable import CustomServer, Servable
    from .server.server import Lifespan
    from .serving.accepting import ServingOptions, SocketListeners, WebSocketOptions
    from .serving.http.asgi import HTTPApp
    from .serving.http.routes import ASGIApp, Route
    from .serving.http.serve import HTTPAppOptions, HTTPOptions
    from .skills.loading import LoadedSkill
    from .tasks.task_state import TaskState
    from .transports.host_checks import Allowed
    from .transports.http_client.dialing import Dial, HTTPRequest, HTTPResponse, OnRequest, OnResponse
    from .transports.process import TextSink

# fmt: off
_NAMES: Final = {
    ".client.cache": "CachePartition Change ChangeKind", ".client.confirming": "CallEnding EndState",
    ".client.current_call": "CallHandlers CurrentCall",
    ".client.options": (
        "ChangedList ClientOptions ClientSettings ElicitationHandler RootsHandler SamplingHandler UnreadableMessage "
        "UrlElicitationHandler"
    ),
    ".client.remote_tasks": "RunningTask", ".client.subscriptions": "Changes", ".connecting.targets": "Target",
    ".jsonrpc.messages": "RequestId", ".openapi.document": "APIOperation",
    ".protocol.cancel_acknowledged": "CancelSettings",
    ".protocol.extensions": "Extension ExtensionNotification ExtensionRequest", ".protocol.fields": "JSONObject",
    ".protocol.meta": "TraceContext", ".protocol.methods": "Sender", ".protocol.revisions": "REVISIONS Revision",
    ".protocol.types.content": (
        "Annotations AudioContent BlobResourceContents ContentBlock EmbeddedResource ImageContent ResourceContents "
        "ResourceLink Role TextContent TextResourceContents ToolResultContent ToolUseContent UnknownContent"
    ),
    ".protocol.types.elicitation": "ElicitFormParams ElicitResult ElicitURLParams",
    ".protocol.types.input_required": "InputRequest",
    ".protocol.types.lifecycle": (
        "CacheScope ClientCapabilities Elicitation Icon Implementation PromptsCapability ResourcesCapability Roots "
        "Sampling ServerCapabilities TasksCapability ToolsCapability"
    ),
    ".protocol.types.notifications": "LogLevel LogParams SubscriptionFilter log_level_rank should_log",
    ".protocol.types.offers": (
        "Completion GetPromptResult Prompt PromptArgument PromptMessage PromptReference ReadResourceResult Resource "
        "ResourceTemplate ResourceTemplateReference"
    ),
    ".protocol.types.sampling": (
        "CreateMessageParams CreateMessageResult ModelHint ModelPreferences Root SamplingMessage ToolChoice"
    ),
    ".protocol.types.server_cards": "CardRemote ServerCard SourceRepository",
    ".protocol.types.skills": "Skill SkillFile",
    ".protocol.types.tools": "CallToolResult TaskMetadata TaskStatus Tool ToolAnnotations ToolExecution",
    ".proxying.gateway": "Gateway", ".proxying.proxy": "Proxy ProxyTarget",
    ".proxying.tenants": "ALL_QUESTIONS OpenUpstream", ".runtime.calls": "OnProgress", ".runtime.limits": "Statistics",
    ".runtime.requests.reports": "RequestLog", ".server.connected_clients": "ConnectedClient",
    ".server.context.client_data": "ElicitAnswer", ".server.context.state": "CallerState StateValue WorkerState",
    ".server.context.tasks": "CallerTasks StoredTasks TaskContext TaskOutcome TaskPage WorkerTask WorkerTasks",
    ".server.context.worker_context": "WorkerLog", ".server.middleware": "MiddlewareFunction",
    ".server.offering": "RootsChanged", ".server.offers.apps": "AppsSettings", ".server.offers.skills": "SkillOptions",
    ".server.options": "PromptOptions ResourceOptions SamplingOptions ToolOptions Visible",
    ".server.servable": "CustomServer Servable", ".server.server": "Lifespan",
    ".serving.accepting": "ServingOptions SocketListeners WebSocketOptions", ".serving.http.asgi": "HTTPApp",
    ".serving.http.routes": "ASGIApp Route", ".serving.http.serve": "HTTPAppOptions HTTPOptions",
    ".skills.loading": "LoadedSkill", ".tasks.task_state": "TaskState", ".transports.host_checks": "Allowed",
    ".transports.http_client.dialing": "Dial HTTPRequest HTTPResponse OnRequest OnResponse",
    ".transports.process": "TextSink",
}
__all__ = [
    "ALL_QUESTIONS", "REVISIONS", "APIOperation", "ASGIApp", "Allowed", "Annotations", "AppsSettings", "AudioContent",
    "BlobResourceContents", "CachePartition", "CacheScope", "CallEnding", "CallHandlers", "CallToolResult",
    "CallerState", "CallerTasks", "CancelSettings", "CardRemote", "Change", "ChangeKind", "ChangedList", "Changes",
    "ClientCapabilities", "ClientOptions", "ClientSettings", "Completion", "ConnectedClient", "ContentBlock",
    "CreateMessageParams", "CreateMessageResult", "CurrentCall", "CustomServer", "Dial", "ElicitAnswer",
    "ElicitFormParams", "ElicitResult", "ElicitURLParams", "Elicitation", "ElicitationHandler", "EmbeddedResource",
    "EndState", "Extension", "ExtensionNotification", "ExtensionRequest", "Gateway", "GetPromptResult", "HTTPApp",
    "HTTPAppOptions", "HTTPOptions", "HTTPRequest", "HTTPResponse", "Icon", "ImageContent", "Implementation",
    "InputRequest", "JSONObject", "Lifespan", "LoadedSkill", "LogLevel", "LogParams", "MiddlewareFunction", "ModelHint",
    "ModelPreferences", "OnProgress", "OnRequest", "OnResponse", "OpenUpstream", "Prompt", "PromptArgument",
    "PromptMessage", "PromptOptions", "PromptReference", "PromptsCapability", "Proxy", "ProxyTarget",
    "ReadResourceResult", "RequestId", "RequestLog", "Resource", "ResourceContents", "ResourceLink", "ResourceOptions",
    "ResourceTemplate", "ResourceTemplateReference", "ResourcesCapability", "Revision", "Role", "Root", "Roots",
    "RootsChanged", "RootsHandler", "Route", "RunningTask", "Sampling", "SamplingHandler", "SamplingMessage",
    "SamplingOptions", "Sender", "Servable", "ServerCapabilities", "ServerCard", "ServingOptions", "Skill", "SkillFile",
    "SkillOptions", "SocketListeners", "SourceRepository", "StateValue", "Statistics", "StoredTasks",
    "SubscriptionFilter", "Target", "TaskContext", "TaskMetadata", "TaskOutcome", "TaskPage", "TaskState", "TaskStatus",
    "TasksCapability", "TextContent", "TextResourceContents", "TextSink", "Tool", "ToolAnnotations", "ToolChoice",
    "ToolExecution", "ToolOptions", "ToolResultContent", "ToolUseContent", "ToolsCapability", "TraceContext",
    "UnknownContent", "UnreadableMessage", "UrlElicitationHandler", "Visible", "WebSocketOptions", "WorkerLog",
    "WorkerState", "WorkerTask", "WorkerTasks", "log_level_rank", "should_log",
]
# fmt: on

if not TYPE_CHECKING:  # hide `__getattr__` from type checkers, because they report unknown names themselves
    from .lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _NAMES)
