"""`TaskSettings`: the store and the limits of a server's or client's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..classes import frozen, not_negative, positive

if TYPE_CHECKING:
    from ..stores.task_store import TaskStore


@frozen(kw_only=True)
class TaskSettings:
    """The store and the limits of background tasks. Times are in seconds."""

    store: TaskStore | None = None
    """The store for task records. With `None`, a `MemoryTaskStore` is used, which is lost when the server ends."""
    grace: float = attrs.field(default=1.0, validator=not_negative)
    """Time after which a call becomes a task, if the server decides that. A call that ends earlier gets an ordinary
    response. If the handler sends a request to the client earlier, that request belongs to the call and not to the
    task. `RequestContext.task` can start the task sooner."""
    ttl: float = attrs.field(default=3600.0, validator=positive)
    """Time to live of a task from its creation, unless the client requests another time. A task that hasn't ended by
    then is cancelled and fails. ``math.inf`` means no limit."""
    max_ttl: float = attrs.field(default=86_400.0, validator=positive)
    """Maximum time to live that a client can request for a task. Longer times are reduced to the maximum."""
    retention: float = attrs.field(default=60.0, validator=not_negative)
    """Time after ``ttl`` for which the task record can still be read."""
    poll_interval: float = attrs.field(default=1.0, validator=positive)
    """Recommended time between two polls by a client."""
    max_running: int = attrs.field(default=10_000, validator=positive)
    """Maximum number of tasks that run concurrently in this process. If it is reached, a call that must be a task gets
    error -31000, and any other call gets an ordinary response."""
    max_running_of_caller: int = attrs.field(default=1000, validator=positive)
    """Maximum number of tasks that run concurrently for one caller: a principal, or without a principal an address (see
    `Limits`). One connection or session of the caller can use at most as many as it leaves free for the caller's other
    connections. The only client of a server on stdio may use all of ``max_running``."""
    max_kept: int = attrs.field(default=100_000, validator=positive)
    """Maximum number of task records in the store, including ended tasks. If it is reached, calls are answered as for
    ``max_running``."""
    max_kept_of_caller: int = attrs.field(default=20_000, validator=positive)
    """Maximum number of task records of one principal. All clients without a principal count as one principal."""
    max_record_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=positive)
    """Maximum size in bytes of a task's parameters, of its outcome, of a checkpoint, and of the answers sent at once.
    The limit applies to each of them. A task with a larger outcome fails."""
    max_attempts: int = attrs.field(default=3, validator=positive)
    """Maximum number of runs before a task fails, if its tool is declared safe to run again. Runs that a graceful
    shutdown ends don't count."""
    lease: float = attrs.field(default=30.0, validator=positive)
    """Time without a renewal after which a process is considered dead, and its tasks are taken over."""
    look_interval: float = attrs.field(default=5.0, validator=positive)
    """Maximum time until a change of a task is noticed, even if the store's notification was lost."""


DEFAULT_TASKS = TaskSettings()
