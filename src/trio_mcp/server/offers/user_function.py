"""UserFunction: a user's function, and a run of the function for one request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs

from ...concurrency.workers import run_in_worker
from ...runtime.requests.request_scope import RequestScope
from ...tasks.host import TaskHost
from ..asking.live_context import LiveContext
from ..context.worker_context import WorkerContext
from ..signatures.signature import Signature


@attrs.frozen(eq=False)
class UserFunction:
    """A function with its signature. ``doc`` is its docstring, cleaned up."""

    signature: Signature
    doc: str | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> UserFunction:
        """Take ``function`` apart. Raises `TypeError` for a signature that cannot be used."""
        return cls(Signature.of(function), inspect.getdoc(function))

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: TaskHost | None = None
    ) -> Awaitable[Any]:
        """Run the function with ``bound`` arguments: async functions right here, plain functions in a worker thread.
        ``tasks``: the host of the tasks that the function may look at."""
        signature = self.signature
        if signature.is_async:
            if signature.context_name is not None:
                bound[signature.context_name] = LiveContext(scope, lifespan, tasks)
            return signature.function(**bound)
        if signature.context_name is not None:
            bound[signature.context_name] = WorkerContext(LiveContext(scope, lifespan, tasks))
        call, threads = partial(signature.function, **bound), scope.runner.workers.share(scope.ticket.caller)
        return run_in_worker(call, threads, lambda: scope.runner.graces)  # a task has another runner in the end
