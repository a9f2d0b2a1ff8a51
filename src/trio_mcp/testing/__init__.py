"""Test MCP servers and hosts in memory, without waiting and with reproducible results."""

from __future__ import annotations

from ..client.options import UserOptions
from ..connecting.memory import open_server
from ..server.calling.provided import provide_instead
from ..transports.lines import memory_transport_pair
from .faults import (
    Cut,
    Delay,
    Disconnect,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    FaultyChannel,
    Garble,
    MessageInTransit,
    RandomFaults,
)
from .recording_context import RecordedTask, RecordingContext, SentMessage, in_turn
from .scripted_peer import MissingMessage, Pattern, ScriptedPeer, Transcript, UnexpectedMessage
from .scripted_sides import (
    Script,
    ScriptedClient,
    ScriptedServer,
    assert_replays,
    open_scripted_client,
    open_scripted_process,
    open_scripted_server,
    serve_scripted_stdio,
)
from .stores.change_log import ChangeLogSuite
from .stores.courier import CourierSuite
from .stores.event_log import EventLogSuite
from .stores.session_directory import SessionDirectorySuite
from .stores.storage import RateLimitsSuite, ReplayGuardSuite, SharedStorageSuite
from .stores.task_store import TaskStoreSuite

__all__ = [
    "ChangeLogSuite",
    "CourierSuite",
    "Cut",
    "Delay",
    "Disconnect",
    "Drop",
    "Duplicate",
    "EventLogSuite",
    "Fault",
    "FaultPlan",
    "FaultyChannel",
    "Garble",
    "MessageInTransit",
    "MissingMessage",
    "Pattern",
    "RandomFaults",
    "RateLimitsSuite",
    "RecordedTask",
    "RecordingContext",
    "ReplayGuardSuite",
    "Script",
    "ScriptedClient",
    "ScriptedPeer",
    "ScriptedServer",
    "SentMessage",
    "SessionDirectorySuite",
    "SharedStorageSuite",
    "TaskStoreSuite",
    "Transcript",
    "UnexpectedMessage",
    "UserOptions",
    "assert_replays",
    "in_turn",
    "memory_transport_pair",
    "open_scripted_client",
    "open_scripted_process",
    "open_scripted_server",
    "open_server",
    "provide_instead",
    "serve_scripted_stdio",
]
