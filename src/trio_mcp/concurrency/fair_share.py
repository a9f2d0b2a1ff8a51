"""Fair sharing of a server's limits among its callers, so that no caller can use up a limit.

A `Caller` is a client of the server, such as a principal or a network address, or a part of a client, such as a
connection. `leaves_enough` decides how much a caller gets. `SharedBytes` counts the bytes that a server keeps for its
callers against one limit; `EvictionQueue` counts items.
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
    """Return true if a caller may take ``more`` units of a limit and still leaves enough unused units for other
    callers.

    The caller already uses ``held`` units, and ``free`` units are unused. A caller can hold at most as much as it
    leaves free: half of everything if no other caller wants any, a third if two callers want as much as possible. So
    some is always left for the next caller, and a caller that was alone releases its excess as its requests end.

    For a part of a caller, ``held`` is the sum of what the part holds and what the whole caller holds. A single part
    that wants as much as possible gets a third of everything; two such parts get a fifth each. All parts of one caller
    together never get more than half.
    """
    return held + more <= free


class Caller:
    """The sender of requests to a server. Limits of the server are shared fairly between all callers.

    A `Caller` is a principal, network address or process, or one connection, session or client of it. Each `Caller`
    counts how much of the server's limits it uses.

    `Callers` holds a `Caller` while a connection, session, request or thread refers to it. ``key`` identifies the
    caller. With `None`, the caller is unknown, and each such `Caller` counts as a separate one. If ``alone`` is true,
    there can't be other callers, and nothing is kept free for them.

    Connections, legacy sessions and named clients (see `part`) are parts of a caller. Each part is a `Caller`
    ``within`` the whole caller, or within another part. A whole caller can hold at most as much as it leaves for other
    callers, and a part at most as much as it leaves for the rest of its caller. What a part holds also counts for the
    whole caller.
    """

    __slots__ = (
        *("__weakref__", "_parts", "_tag", "alone", "bytes", "connections", "key", "log_share", "requests", "streams"),
        "within",
    )

    def __init__(self, key: Hashable = None, *, alone: bool = False, within: Caller | None = None) -> None:
        self.key = key
        self.alone = alone
        self.within = within
        """The `Caller` that contains this one. `None` for a whole caller."""
        self.requests = 0
        """Number of the caller's requests that run, wait or are parked. Streams aren't counted."""
        self.streams = 0
        """Number of the caller's open subscription streams."""
        self.bytes = 0
        """Bytes in memory of the caller's requests and streams."""
        self.connections = 0
        """Number of connections of trusted proxies whose last request came from this caller."""
        self.log_share: Any = None
        """Limits the caller's log records, used by `trio_mcp.diagnostics`. `None` until something may be logged."""
        self._parts: WeakValueDictionary[Hashable, Caller] | None = None
        self._tag: str | None = None

    def __repr__(self) -> str:
        return f"<Caller {self.key!r}>" if self.within is None else f"<Caller {self.key!r} within {self.within!r}>"

    @property
    def whole(self) -> Caller:
        """The outermost `Caller` around this object: it stands for a whole principal, network address or process.

        This is the object itself, unless the object stands for a single connection, session or client.
        """
        whole = self
        while whole.within is not None:
            whole = whole.within
        return whole

    @property
    def address(self) -> str | None:
        """The caller's network address, if the address identifies the caller.

        `None` if the caller is identified differently or is unknown.
        """
        match self.whole.key:
            case ("address", str(address)):
                return address
            case _:
                return None

    @property
    def tag(self) -> str:
        """A random name for this `Caller`. Another process can pass the name to `part`, to limit the requests of this
        caller separately."""
        if self._tag is None:
            self._tag = secrets.token_urlsafe(_TAG_BYTES)
        return self._tag

    def connection(self) -> Caller:
        """Return a new `Caller` for one connection or session of this caller.

        A caller without a ``key`` is already a connection, and is returned itself.
        """
        return self if self.key is None else Caller(within=self)

    def part(self, name: str) -> Caller:
        """Return the `Caller` of one client, if several clients make requests as this caller, for example through a
        proxy. ``name`` identifies the client.

        The same object is returned for as long as it's in use. Names aren't verified: a client that invents names only
        divides its caller's own share, as with more connections.
        """
        if self._parts is None:
            self._parts = WeakValueDictionary()
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Caller(name, within=self)
        return part

    def held(self, count: Callable[[Caller], int]) -> int:
        """Return how much of a limit this `Caller` uses, plus how much the callers around it use. For example, a
        connection is a `Caller` within the `Caller` of its network address.

        The result is for `leaves_enough`. A `Caller` that is ``alone`` doesn't count. ``count`` returns the amount of
        one `Caller`.
        """
        held = 0
        caller = self
        while caller is not None:
            if not caller.alone:
                held += count(caller)
            caller = caller.within
        return held

    def may_take(self, count: Callable[[Caller], int], free: int, more: int = 1) -> bool:
        """Return true if this `Caller` may take ``more`` units of a limit. ``free`` units of the limit are unused.

        See `leaves_enough`. ``count`` returns how much a `Caller` uses.
        """
        return leaves_enough(self.held(count), free, more)


class Callers:
    """The current callers of a server.

    There is one `Caller` for each principal, network address or process.
    """

    def __init__(self) -> None:
        self._known = WeakValueDictionary[Hashable, Caller]()

    def of_principal(self, principal: Hashable) -> Caller:
        """Return the `Caller` for an authenticated principal."""
        return self._of(("principal", principal))

    def at(self, address: str) -> Caller:
        """Return the `Caller` for a network address."""
        return self._of(("address", address))

    def of_process(self, process: int) -> Caller:
        """Return the `Caller` for a process on this machine.

        Its key is unique across machines.
        """
        return self._of(("process", os.uname().nodename, process))

    def _of(self, key: Hashable) -> Caller:
        caller = self._known.get(key)
        if caller is None:
            caller = self._known[key] = Caller(key)
        return caller


UNCOUNTED: Final = 16 * 1024
"""The first bytes of each connection that don't count towards the limit."""


class SharedBytes:
    """Counts how many bytes a server keeps in memory for each of its callers, and in total.

    The maximum is ``limit``, which all callers share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        """Number of bytes of all callers together."""
        self._of_callers = WeakKeyDictionary[Caller, int]()

    def held_for(self, caller: Caller) -> HeldBytes:
        """Return a new counter, at 0, for the bytes that one object keeps in memory for ``caller``."""
        return HeldBytes(self, caller)

    def add(self, caller: Caller, count: int) -> None:
        """Add ``count``, which can be negative, to the bytes that are counted for ``caller``."""
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
        """Return true if ``caller`` uses so many bytes that too few are left for other callers."""
        return not caller.may_take(self._held, self._limit - self.size, 0)

    def _held(self, caller: Caller) -> int:
        return self._of_callers.get(caller, 0)


class HeldBytes:
    """Counts the bytes that one object, such as a log, keeps in memory for ``caller``.

    These bytes are part of the total in ``shared``.
    """

    __slots__ = ("_caller", "_shared", "size")

    def __init__(self, shared: SharedBytes, caller: Caller) -> None:
        self._shared = shared
        self._caller = caller
        self.size = 0

    def add(self, count: int) -> None:
        """Add ``count``, which can be negative, to the bytes that are counted for this object."""
        self.size += count
        self._shared.add(self._caller, count)

    def release(self) -> None:
        """Set the number of counted bytes of this object to 0. Idempotent."""
        if self.size:  # false for most requests, which are so small that their bytes aren't counted
            self.add(-self.size)

    def hold(self, size: int) -> bool:
        """Record that an object, such as a log, now keeps ``size`` bytes in memory for its caller. Sizes and increases
        of up to `UNCOUNTED` bytes aren't counted.

        Return true if the caller is still within its share.
        """
        more = (size if size > UNCOUNTED else 0) - self.size
        if 0 <= more <= UNCOUNTED:
            return True
        self.add(more)
        return more < 0 or not self.is_too_much

    def move_to(self, caller: Caller) -> None:
        """From now on, count the bytes of this object for another ``caller``."""
        size = self.size
        self.release()
        self._caller = caller
        self.add(size)

    @property
    def is_too_much(self) -> bool:
        """True if all objects of the caller together use so many bytes that too few are left for other callers."""
        return self._shared.is_too_much(self._caller)


class EvictionQueue(Generic[T]):
    """Keeps the items of each of a server's callers, such as sessions. If there are too many items, it selects the item
    to remove.

    When a caller has too many items, the oldest item is evicted from the caller's connection or client with the most
    items.
    """

    def __init__(self) -> None:
        self._of_callers: dict[Caller, dict[Caller, dict[T, None]]] = {}
        """The items of each connection or client, oldest first, by whole caller."""
        self._counts = Counter[Caller]()

    def count(self, caller: Caller) -> int:
        """Return the number of items of ``caller``.

        The items of its connections and clients are included.
        """
        return self._counts[caller.whole]

    def add(self, caller: Caller, thing: T) -> None:
        """Add the item ``thing`` to this collection, and count it for ``caller``."""
        whole = caller.whole
        self._of_callers.setdefault(whole, {}).setdefault(caller, {})[thing] = None
        self._counts[whole] += 1

    def remove(self, caller: Caller, thing: T) -> None:
        """Remove the item ``thing`` of ``caller``."""
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
        """Return the item that should be removed next.

        It is the oldest item of that connection or client of ``caller`` that has the most items.
        """
        return next(iter(max(self._of_callers[caller.whole].values(), key=len)))
