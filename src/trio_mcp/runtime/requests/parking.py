"""Parking keeps requests that were answered with questions, while their handlers wait for the client to come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

if TYPE_CHECKING:
    from ...concurrency.alarms import Alarm, Alarms
    from ...state.requests import InboundRequest

__all__ = ["Parking"]

T = TypeVar("T")


@attrs.frozen(eq=False)
class _Place(Generic[T]):
    parked: T
    request: InboundRequest
    caller: object
    alarm: Alarm


class Parking(Generic[T]):
    """The parked handlers of a running server or client, each under a handle that is good for one retry.

    Only the ``caller`` for whom a handler was parked finds the handler again: a principal from any connection or,
    without a principal, the same connection (DESIGN ruling 19). A handler stays for up to ``timeout`` seconds; when one
    caller has more than ``most``, the oldest goes. ``expire`` is called with each handler that goes in either way, and
    with the reason. All methods are synchronous.
    """

    def __init__(self, alarms: Alarms, timeout: float, most: int, expire: Callable[[T, str], None]) -> None:
        self._alarms = alarms
        self._timeout = timeout
        self._most = most
        self._expire = expire
        self._places: dict[bytes, _Place[T]] = {}
        """Places by handle, oldest first."""
        self._handles: dict[InboundRequest, bytes] = {}
        self._callers: dict[object, dict[bytes, None]] = {}
        """Handles of each caller, oldest first."""

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the handlers parked now, oldest first."""
        return iter([place.parked for place in self._places.values()])

    def of(self, caller: object) -> list[T]:
        """Return the handlers parked for ``caller``, oldest first."""
        return [self._places[handle].parked for handle in self._callers.get(caller, ())]

    def named(self, request: InboundRequest) -> T | None:
        """Return the handler parked when ``request`` was answered with questions; `None` when that handler is parked no
        more."""
        handle = self._handles.get(request)
        return None if handle is None else self._places[handle].parked

    def find(self, handle: bytes, caller: object) -> T | None:
        """Return the handler parked for ``caller`` under ``handle``; `None` when the handle is not, or no longer,
        good."""
        place = self._places.get(handle)
        return place.parked if place is not None and place.caller == caller else None

    def keep(self, handle: bytes, parked: T, request: InboundRequest, caller: object) -> None:
        """Keep ``parked``, whose ``request`` was answered with questions, for ``caller`` under ``handle``."""
        due = trio.current_time() + self._timeout if self._timeout < math.inf else math.inf
        alarm = self._alarms.set(due, partial(self._ring, handle))
        self._places[handle] = _Place(parked, request, caller, alarm)
        self._handles[request] = handle
        handles = self._callers.setdefault(caller, {})
        handles[handle] = None
        if len(handles) > self._most:
            self._expire(self._places[next(iter(handles))].parked, "too many handlers wait for answers")

    def forget(self, request: InboundRequest) -> bool:
        """Forget the handler parked when ``request`` was answered. Return false when the handler was forgotten
        before."""
        handle = self._handles.pop(request, None)
        if handle is None:
            return False
        place = self._places.pop(handle)
        place.alarm.stop()
        handles = self._callers[place.caller]
        del handles[handle]
        if not handles:
            del self._callers[place.caller]
        return True

    def _ring(self, handle: bytes) -> None:
        self._expire(self._places[handle].parked, f"no answers came within {self._timeout:g} seconds")
