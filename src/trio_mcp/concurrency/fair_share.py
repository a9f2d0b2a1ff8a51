"""Callers share what is bounded for a whole server.

A `Caller` is a party with a share, or a part of such a party. `leaves_enough` decides how much a caller gets.
`SharedBytes` counts the bytes that a server keeps for its callers against one limit; `EvictionQueue` counts items.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

T = TypeVar("T")

_TAG_BYTES: Final = 12


def leaves_enough(held: int, free: int, more: int = 1) -> bool:
    """Return whether a caller that holds ``held`` may take ``more`` of ``free``.

    A caller gets no more than it leaves for others: half of all if no other caller wants any, a third if two want as
    much as possible. Some is thus left for the next caller, and a caller that was alone gives its excess back as its
    requests end.

    For a part of a caller, ``held`` is the sum of what the part holds and what the whole caller holds. If a single part
    wants as much as possible, it gets a third of everything; two such parts get a fifth each. All parts of one caller
    together never get more than half.
    """
    return held + more <= free


class Caller:
    """A party that calls a server, or a part of a party, with its holdings of the server's bounds.

    `Callers` has one for each party, for as long as a connection, a session, a request or a thread of the party refers
    to the `Caller`. ``key`` says who the party is; `None`: unknown, and each such `Caller` is another party. With
    ``alone`` no other party can call, and nothing is kept free for others.

    Connections, legacy sessions and clients with a name (see `part`) are parts of a party. Each part is a `Caller`
    ``within`` the party, or within another part. A party gets no more than it leaves for other parties. A part gets no
    more than it leaves for the rest of the party. The holdings of a part also count for the party.
    """

    __slots__ = (
        *("__weakref__", "_parts", "_tag", "alone", "bytes", "connections", "key", "log_share", "requests", "streams"),
        "within",
    )

    def __init__(self, key: Hashable = None, *, alone: bool = False, within: Caller | None = None) -> None:
        self.key = key
        self.alone = alone
        self.within = within
        """The party, or part, that this `Caller` is a part of; `None` for a whole party."""
        self.requests = 0
        """Requests that run, wait or are parked, streams apart."""
        self.streams = 0
        """Streams that are open."""
        self.bytes = 0
        """Bytes in memory of the requests and streams."""
        self.connections = 0
        """Connections of trusted proxies whose last request was one of the party."""
        self.log_share: Any = None
        """The share of the log, as `trio_mcp.diagnostics` keeps it; `None` before anything may be logged."""
        self._parts: WeakValueDictionary[Hashable, Caller] | None = None
        self._tag: str | None = None

    def __repr__(self) -> str:
        return f"<Caller {self.key!r}>" if self.within is None else f"<Caller {self.key!r} within {self.within!r}>"

    @property
    def whole(self) -> Caller:
        """The whole party: this `Caller` itself, or the party that it is a part of."""
        whole = self
        while whole.within is not None:
            whole = whole.within
        return whole

    @property
    def address(self) -> str | None:
        """The network address that the party is known by; `None` where the party is known otherwise, or not at all."""
        match self.whole.key:
            case ("address", str(address)):
                return address
            case _:
                return None

    @property
    def tag(self) -> str:
        """A random name for this `Caller`, for `part` in another process."""
        if self._tag is None:
            self._tag = secrets.token_urlsafe(_TAG_BYTES)
        return self._tag

    def connection(self) -> Caller:
        """Return a new part for one connection or session. A party without a ``key`` is itself a connection, so this
        returns the party."""
        return self if self.key is None else Caller(within=self)

    def part(self, name: str) -> Caller:
        """Return the part with this ``name``, always the same object while it is in use. Names aren't verified: a
        false name only takes from other parts of the same party, as another connection would."""
        if self._parts is None:
            self._parts = WeakValueDictionary()
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Caller(name, within=self)
        return part

    def held(self, count: Callable[[Caller], int]) -> int:
        """Return the sum for `may_take`: the holdings of this `Caller` and of each `Caller` that contains it, except
        those that are alone. ``count`` returns the holdings of one `Caller`."""
        held = 0
        caller = self
        while caller is not None:
            if not caller.alone:
                held += count(caller)
            caller = caller.within
        return held

    def may_take(self, count: Callable[[Caller], int], free: int, more: int = 1) -> bool:
        """Return whether this `Caller` may take ``more`` of ``free``: see `leaves_enough`. ``count`` returns the
        holdings of a `Caller`."""
        return leaves_enough(self.held(count), free, more)


class Callers:
    """The parties that call a server now, each of them once."""

    def __init__(self) -> None:
        self._known = WeakValueDictionary[Hashable, Caller]()

    def of_principal(self, principal: Hashable) -> Caller:
        """Return the party that authorization has found."""
        return self._of(("principal", principal))

    def at(self, address: str) -> Caller:
        """Return the party at a network address."""
        return self._of(("address", address))

    def of_process(self, process: int) -> Caller:
        """Return the party for a process on this machine. The key can be compared with keys of other machines."""
        return self._of(("process", os.uname().nodename, process))

    def _of(self, key: Hashable) -> Caller:
        caller = self._known.get(key)
        if caller is None:
            caller = self._known[key] = Caller(key)
        return caller


UNCOUNTED: Final = 16 * 1024
"""Bytes of a connection that are not worth counting."""


class SharedBytes:
    """Bytes that a server keeps, ``limit`` in all, of which each caller gets its share."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        """Bytes that all callers together hold."""
        self._of_callers = WeakKeyDictionary[Caller, int]()

    def held_for(self, caller: Caller) -> HeldBytes:
        """Return a count of bytes that are kept for ``caller``, none so far."""
        return HeldBytes(self, caller)

    def add(self, caller: Caller, count: int) -> None:
        """Note that ``caller`` holds ``count`` bytes more, or fewer where that is negative."""
        self.size += count
        holder: Caller | None = caller
        while holder is not None:
            held = self._of_callers.get(holder, 0) + count
            if held:
                self._of_callers[holder] = held
            else:
                self._of_callers.pop(holder, None)
            holder = holder.within

    def is_too_much(self, caller: Caller) -> bool:
        """Return whether ``caller`` holds more than its share: more than it leaves for others."""
        return not caller.may_take(self._held, self._limit - self.size, 0)

    def _held(self, caller: Caller) -> int:
        return self._of_callers.get(caller, 0)


class HeldBytes:
    """The bytes of ``shared`` that one thing keeps for ``caller``, a log for example."""

    __slots__ = ("_caller", "_shared", "size")

    def __init__(self, shared: SharedBytes, caller: Caller) -> None:
        self._shared = shared
        self._caller = caller
        self.size = 0

    def add(self, count: int) -> None:
        """Note ``count`` bytes more, or fewer where that is negative."""
        self.size += count
        self._shared.add(self._caller, count)

    def release(self) -> None:
        """Give all bytes back. Idempotent."""
        if self.size:  # of most requests nothing was counted
            self.add(-self.size)

    def hold(self, size: int) -> bool:
        """Note that ``size`` bytes are kept now, counted in steps of `UNCOUNTED`. Return whether the caller may go on:
        false for more than the share of the caller."""
        more = (size if size > UNCOUNTED else 0) - self.size
        if 0 <= more <= UNCOUNTED:
            return True
        self.add(more)
        return more < 0 or not self.is_too_much

    def move_to(self, caller: Caller) -> None:
        """Count the bytes for ``caller`` from now on."""
        size = self.size
        self.release()
        self._caller = caller
        self.add(size)

    @property
    def is_too_much(self) -> bool:
        """True while the caller holds more than its share, here and elsewhere."""
        return self._shared.is_too_much(self._caller)


class EvictionQueue(Generic[T]):
    """Items of one kind that a server keeps for its callers. If a caller has too many, the oldest item of its part with
    the most items goes first."""

    def __init__(self) -> None:
        self._of_callers: dict[Caller, dict[Caller, dict[T, None]]] = {}
        """The items of each part, oldest first, by whole caller."""
        self._counts = Counter[Caller]()

    def count(self, caller: Caller) -> int:
        """Return the number of items of the whole ``caller``."""
        return self._counts[caller.whole]

    def add(self, caller: Caller, thing: T) -> None:
        """Keep ``thing`` for ``caller``."""
        whole = caller.whole
        self._of_callers.setdefault(whole, {}).setdefault(caller, {})[thing] = None
        self._counts[whole] += 1

    def remove(self, caller: Caller, thing: T) -> None:
        """Forget ``thing`` of ``caller``."""
        whole = caller.whole
        parts = self._of_callers[whole]
        things = parts[caller]
        del things[thing]
        self._counts[whole] -= 1
        if not things:
            del parts[caller]
            if not parts:
                del self._of_callers[whole], self._counts[whole]

    def next_evicted(self, caller: Caller) -> T:
        """Return the oldest item of the part of the whole ``caller`` that has the most items."""
        return next(iter(max(self._of_callers[caller.whole].values(), key=len)))
