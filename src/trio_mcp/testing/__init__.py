"""The testing kit: tests of MCP servers and hosts without a wire, without waiting, and without chance."""

from __future__ import annotations

from ..client.opening import open_client
from ..connecting.memory import open_server
from ..transports.memory import memory_channel_pair
from .comparing import Pattern
from .faults import Cut, Delay, Disconnect, Drop, Duplicate, Fault, FaultPlan, Garble, Passage, RandomFaults
from .faulty_channel import FaultyChannel
from .in_turn import in_turn
from .opening import open_scripted_client, open_scripted_process, open_scripted_server, serve_scripted_stdio
from .recorded_task import RecordedTask
from .recording_context import RecordingContext, Said
from .scripted_client import ScriptedClient
from .scripted_peer import MissingMessage, ScriptedPeer, UnexpectedMessage
from .scripted_server import ScriptedServer
from .task_stores.suite import TaskStoreSuite

__all__ = [
    "Cut",
    "Delay",
    "Disconnect",
    "Drop",
    "Duplicate",
    "Fault",
    "FaultPlan",
    "FaultyChannel",
    "Garble",
    "MissingMessage",
    "Passage",
    "Pattern",
    "RandomFaults",
    "RecordedTask",
    "RecordingContext",
    "Said",
    "ScriptedClient",
    "ScriptedPeer",
    "ScriptedServer",
    "TaskStoreSuite",
    "UnexpectedMessage",
    "in_turn",
    "memory_channel_pair",
    "open_client",
    "open_scripted_client",
    "open_scripted_process",
    "open_scripted_server",
    "open_server",
    "serve_scripted_stdio",
]
