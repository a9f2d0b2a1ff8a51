"""TaskSettings: how a server or a client runs tasks, and within which bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..classes import frozen, not_negative, positive

if TYPE_CHECKING:
    from ..stores.task_store import TaskStore


@frozen(kw_only=True)
class TaskSettings:
    """The store and the bounds of tasks. Times are in seconds."""

    store: TaskStore | None = None
    """Place of the records. `None`: a `MemoryTaskStore`, which ends with the server."""
    grace: float = attrs.field(default=1.0, validator=not_negative)
    """Time that a call may take before it becomes a task, where the server decides on that: a call that ends before is
    answered like any call, and a question that comes before is a question of the call. `RequestContext.task` can start
    the task earlier."""
    ttl: float = attrs.field(default=3600.0, validator=positive)
    """Time from its creation for which a task exists, unless the requestor asks for another. A task that has not ended
    by then is cancelled and fails. ``math.inf``: for ever."""
    max_ttl: float = attrs.field(default=86_400.0, validator=positive)
    """Longest such time that a requestor may ask for; a longer one is shortened."""
    retention: float = attrs.field(default=60.0, validator=not_negative)
    """Time after ``ttl`` for which a record can still be read."""
    poll_interval: float = attrs.field(default=1.0, validator=positive)
    """Time that clients are advised to wait between two looks at a task."""
    max_running: int = attrs.field(default=10_000, validator=positive)
    """Tasks that run at the same time here. One more call that has to be a task is answered with error -31000; one that
    need not be is answered as an ordinary call."""
    max_running_of_caller: int = attrs.field(default=1000, validator=positive)
    """Tasks that run concurrently for one caller: a principal, otherwise an address; see `Limits`. One connection or
    session of a caller gets no more of them than it leaves for the others. The only client of a server on stdio may
    have ``max_running``."""
    max_kept: int = attrs.field(default=100_000, validator=positive)
    """Records in the store, including the records of ended tasks. Beyond as for ``max_running``."""
    max_kept_of_caller: int = attrs.field(default=20_000, validator=positive)
    """Records of one principal; all clients without a principal count as one."""
    max_record_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=positive)
    """Bytes of the parameters of a task, of its outcome, of a checkpoint and of the answers that come at a time, each.
    A task with a larger outcome fails."""
    max_attempts: int = attrs.field(default=3, validator=positive)
    """Times that a task may be run, if its tool is declared safe to run again, until the task fails. Runs that a server
    gives up while shutting down in good order do not count."""
    lease: float = attrs.field(default=30.0, validator=positive)
    """Time without a sign of life after which a process is taken for dead, and its tasks are taken over."""
    look_interval: float = attrs.field(default=5.0, validator=positive)
    """Time after which a change is noticed at the latest, even if the hint of the store was lost."""


DEFAULT_TASKS = TaskSettings()
