"""The testing kit: everything to test MCP servers and hosts without a wire, without waiting, and without luck."""

from __future__ import annotations

from ..transports.memory import memory_channel_pair
from .faults import Cut, Delay, Disconnect, Drop, Duplicate, Fault, FaultPlan, Garble, Passage, RandomFaults
from .faulty_channel import FaultyChannel

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
    "Passage",
    "RandomFaults",
    "memory_channel_pair",
]
