"""The testing kit: tests of MCP servers and hosts without a wire, without waiting, and without chance."""

from __future__ import annotations

from ..client.opening import open_client
from ..connecting.memory import open_server
from ..server.provided import provide_instead
from ..transports.memory import memory_channel_pair
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
    Passage,
    RandomFaults,
)
from .recording_context import RecordedTask, RecordingContext, Said, in_turn
from .replaying import assert_replays
from .scripted_peer import MissingMessage, Pattern, ScriptedPeer, UnexpectedMessage
from .scripted_sides import (
    ScriptedClient,
    ScriptedServer,
    open_scripted_client,
    open_scripted_process,
    open_scripted_server,
    serve_scripted_stdio,
)
from .shared_changes import ChangeLogSuite
from .shared_courier import CourierSuite
from .shared_events import EventLogSuite
from .shared_limits import RateLimitsSuite, SeenOnceSuite
from .shared_sessions import SessionDirectorySuite
from .shared_suites import SharedSuite
from .store_suite import TaskStoreSuite

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
    "MissingMessage",
    "Passage",
    "Pattern",
    "RandomFaults",
    "RateLimitsSuite",
    "RecordedTask",
    "RecordingContext",
    "Said",
    "ScriptedClient",
    "ScriptedPeer",
    "ScriptedServer",
    "SeenOnceSuite",
    "SessionDirectorySuite",
    "SharedSuite",
    "TaskStoreSuite",
    "UnexpectedMessage",
    "assert_replays",
    "in_turn",
    "memory_channel_pair",
    "open_client",
    "open_scripted_client",
    "open_scripted_process",
    "open_scripted_server",
    "open_server",
    "provide_instead",
    "serve_scripted_stdio",
]
