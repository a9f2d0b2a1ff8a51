"""Values of the specification, and classes that you receive or annotate: option dictionaries, callbacks, results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .client.cache import CachePartition, Change
    from .client.confirming import CallEnding
    from .client.current_call import CallHandlers, CurrentCall
    from .client.options import ClientOptions, ClientSettings, UnreadableMessage
    from .client.remote_tasks import RunningTask
    from .client.subscriptions import Changes
    from .fleet.fleet import FleetStorage
    from .openapi.document import APIOperation
    from .protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
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
    from .protocol.types.tools import CallToolResult, Tool, ToolAnnotations
    from .proxying.gateway import Gateway
    from .proxying.proxy import Proxy
    from .proxying.tenants import ALL_QUESTIONS
    from .runtime.calls import OnProgress
    from .runtime.limits import Statistics
    from .runtime.requests.reports import RequestLog
    from .server.connected_clients import ConnectedClient
    from .server.context.client_data import ElicitAnswer
    from .server.context.tasks import CallerTasks, StoredTasks, TaskContext, TaskPage
    from .server.context.worker_context import WorkerTask, WorkerTasks
    from .server.offers.skill_offers import SkillOptions
    from .server.options import PromptOptions, ResourceOptions, SamplingOptions, ToolOptions
    from .server.sharing import SharedStorage
    from .serving.accepting import ServingOptions, WebSocketOptions
    from .serving.http.asgi import HTTPApp
    from .serving.http.routes import Route
    from .serving.http.serve import HTTPAppOptions, HTTPOptions
    from .skills.loading import LoadedSkill
    from .tasks.task_state import TaskState
    from .transports.http_client.dialing import HTTPRequest, HTTPResponse

# fmt: off
_NAMES: Final = {
    ".client.cache": "CachePartition Change", ".client.confirming": "CallEnding",
    ".client.current_call": "CallHandlers CurrentCall",
    ".client.options": "ClientOptions ClientSettings UnreadableMessage", ".client.remote_tasks": "RunningTask",
    ".client.subscriptions": "Changes", ".fleet.fleet": "FleetStorage", ".openapi.document": "APIOperation",
    ".protocol.extensions": "Extension ExtensionNotification ExtensionRequest", ".protocol.meta": "TraceContext",
    ".protocol.revisions": "REVISIONS Revision",
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
    ".protocol.types.skills": "Skill SkillFile", ".protocol.types.tools": "CallToolResult Tool ToolAnnotations",
    ".proxying.gateway": "Gateway", ".proxying.proxy": "Proxy", ".proxying.tenants": "ALL_QUESTIONS",
    ".runtime.calls": "OnProgress", ".runtime.limits": "Statistics", ".runtime.requests.reports": "RequestLog",
    ".server.connected_clients": "ConnectedClient", ".server.context.client_data": "ElicitAnswer",
    ".server.context.tasks": "CallerTasks StoredTasks TaskContext TaskPage",
    ".server.context.worker_context": "WorkerTask WorkerTasks", ".server.offers.skill_offers": "SkillOptions",
    ".server.options": "PromptOptions ResourceOptions SamplingOptions ToolOptions", ".server.sharing": "SharedStorage",
    ".serving.accepting": "ServingOptions WebSocketOptions", ".serving.http.asgi": "HTTPApp",
    ".serving.http.routes": "Route", ".serving.http.serve": "HTTPAppOptions HTTPOptions",
    ".skills.loading": "LoadedSkill", ".tasks.task_state": "TaskState",
    ".transports.http_client.dialing": "HTTPRequest HTTPResponse",
}
__all__ = [
    "ALL_QUESTIONS", "REVISIONS", "APIOperation", "Annotations", "AudioContent", "BlobResourceContents",
    "CachePartition", "CallEnding", "CallHandlers", "CallToolResult", "CallerTasks", "CardRemote", "Change", "Changes",
    "ClientCapabilities", "ClientOptions", "ClientSettings", "Completion", "ConnectedClient", "ContentBlock",
    "CreateMessageParams", "CreateMessageResult", "CurrentCall", "ElicitAnswer", "ElicitFormParams", "ElicitResult",
    "ElicitURLParams", "Elicitation", "EmbeddedResource", "Extension", "ExtensionNotification", "ExtensionRequest",
    "FleetStorage", "Gateway", "GetPromptResult", "HTTPApp", "HTTPAppOptions", "HTTPOptions", "HTTPRequest",
    "HTTPResponse", "Icon", "ImageContent", "Implementation", "InputRequest", "LoadedSkill", "LogLevel", "LogParams",
    "ModelHint", "ModelPreferences", "OnProgress", "Prompt", "PromptArgument", "PromptMessage", "PromptOptions",
    "PromptReference", "Proxy", "ReadResourceResult", "RequestLog", "Resource", "ResourceContents", "ResourceLink",
    "ResourceOptions", "ResourceTemplate", "ResourceTemplateReference", "Revision", "Root", "Roots", "Route",
    "RunningTask", "Sampling", "SamplingMessage", "SamplingOptions", "ServerCapabilities", "ServerCard",
    "ServingOptions", "SharedStorage", "Skill", "SkillFile", "SkillOptions", "SourceRepository", "Statistics",
    "StoredTasks", "SubscriptionFilter", "TaskContext", "TaskPage", "TaskState", "TextContent", "TextResourceContents",
    "Tool", "ToolAnnotations", "ToolChoice", "ToolOptions", "ToolResultContent", "ToolUseContent", "TraceContext",
    "UnknownContent", "UnreadableMessage", "WebSocketOptions", "WorkerTask", "WorkerTasks", "log_level_rank",
    "should_log",
]
# fmt: on

if not TYPE_CHECKING:  # type checkers know the names, and report others

    def __getattr__(name: str) -> Any:
        from .lazy import lazy_name

        return lazy_name(globals(), _NAMES, name)

    def __dir__() -> list[str]:
        return __all__
