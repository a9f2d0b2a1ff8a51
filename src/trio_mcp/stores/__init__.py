"""Stores for the records of background tasks: in memory, or in an SQLite file that several processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..fleet.fleet import FleetStorage
    from ..server.sharing import SharedStorage
    from .memory import MemoryTaskStore
    from .record_codec import RecordCodec, StoredRecord
    from .shared import (
        ChangeCursor,
        ChangeHint,
        ChangeLog,
        ChangesSince,
        Courier,
        EventLog,
        RateLimits,
        ReplayGuard,
        Replica,
        SessionDirectory,
        StorageCounters,
        StoredEvents,
        StoredSession,
        StoredStream,
    )
    from .sqlite_store import SQLiteTaskStore
    from .task_store import (
        HINTS_LOST,
        Hint,
        HintQueue,
        HintQueues,
        HintsLost,
        OnRestart,
        Outcome,
        StoreDown,
        StoredTask,
        StoreFull,
        TaskCursor,
        TaskPhase,
        TaskRecord,
        TaskStore,
        Uncertain,
        UnreadableRecord,
        new_mark,
    )

# fmt: off
_NAMES: Final = {
    "..fleet.fleet": "FleetStorage", "..server.sharing": "SharedStorage", ".memory": "MemoryTaskStore",
    ".record_codec": "RecordCodec StoredRecord",
    ".shared": (
        "ChangeCursor ChangeHint ChangeLog ChangesSince Courier EventLog RateLimits ReplayGuard Replica "
        "SessionDirectory StorageCounters StoredEvents StoredSession StoredStream"
    ),
    ".sqlite_store": "SQLiteTaskStore",
    ".task_store": (
        "HINTS_LOST Hint HintQueue HintQueues HintsLost OnRestart Outcome StoreDown StoreFull StoredTask TaskCursor "
        "TaskPhase TaskRecord TaskStore Uncertain UnreadableRecord new_mark"
    ),
}
__all__ = [
    "HINTS_LOST", "ChangeCursor", "ChangeHint", "ChangeLog", "ChangesSince", "Courier", "EventLog", "FleetStorage",
    "Hint", "HintQueue", "HintQueues", "HintsLost", "MemoryTaskStore", "OnRestart", "Outcome", "RateLimits",
    "RecordCodec", "ReplayGuard", "Replica", "SQLiteTaskStore", "SessionDirectory", "SharedStorage", "StorageCounters",
    "StoreDown", "StoreFull", "StoredEvents", "StoredRecord", "StoredSession", "StoredStream", "StoredTask",
    "TaskCursor", "TaskPhase", "TaskRecord", "TaskStore", "Uncertain", "UnreadableRecord", "new_mark",
]
# fmt: on

if not TYPE_CHECKING:  # type checkers skip this block: a module with `__getattr__` would hide unknown names
    from ..lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _NAMES)
