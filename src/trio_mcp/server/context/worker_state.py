"""`WorkerState`: the `CallerState` for handlers in worker threads."""

from __future__ import annotations

from ...runtime.requests.scope import RequestScope
from .state import CallerState
from .worker_calls import blocking


class WorkerState:
    """`CallerState` for worker threads. Methods that are async in `CallerState` block in this class."""

    def __init__(self, state: CallerState, scope: RequestScope | None) -> None:
        self._original = state
        self._scope = scope

    def at(self, handle: str) -> WorkerState:
        """Return another state of the same caller, named ``handle``. See `CallerState.at`."""
        return WorkerState(self._original.at(handle), self._scope)

    get = blocking(CallerState.get)
    read = blocking(CallerState.read)
    set = blocking(CallerState.set)
    delete = blocking(CallerState.delete)
