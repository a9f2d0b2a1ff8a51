"""Addresses: connections to the addresses of a name that a rule allows, and to no others."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio

from ...concurrency.nurseries import open_service_nursery
from .errors import RequestNotSent

AddressRule: TypeAlias = Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], bool]
"""Says whether an address may be connected to."""

_HEAD_START: Final = 0.25
"""Seconds that an attempt has before the next begins beside it (RFC 8305 section 8)."""
_MOST: Final = 8
"""Addresses that are tried."""


async def connect_where_allowed(host: str, port: int, allows: AddressRule) -> trio.SocketStream:
    """Connect to the first address of ``host`` that ``allows`` allows, and that answers.

    The name is looked up once, and each attempt is for an address, so a name that points elsewhere a moment later (DNS
    rebinding) changes nothing. Raises `RequestNotSent` where no address is allowed, and `OSError` from an
    ExceptionGroup where none answers.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    named = [str(sockaddr[0]) for *_, sockaddr in found]
    allowed = [address for address in dict.fromkeys(named) if allows(ipaddress.ip_address(address))]
    if not allowed:
        refused = ", ".join(dict.fromkeys(named[:_MOST]))
        raise RequestNotSent(f"no connection to {host}: the rules of this client forbid the address {refused}")
    return await _first_to_answer(_by_turns(allowed)[:_MOST], port)


def _by_turns(addresses: Sequence[str]) -> list[str]:
    """Return ``addresses`` with the first of the other family in the second place (RFC 8305 section 4): one of both
    families may be cut off as a whole."""
    first, *rest = addresses
    other = next((address for address in rest if (":" in address) != (":" in first)), None)
    return [first, *rest] if other is None else [first, other, *(each for each in rest if each != other)]


async def _first_to_answer(addresses: Sequence[str], port: int) -> trio.SocketStream:
    done, outcomes = trio.open_memory_channel[trio.SocketStream | OSError](len(addresses))

    async def attempt(address: str) -> None:
        try:
            done.send_nowait(await trio.open_tcp_stream(address, port))
        except OSError as error:
            done.send_nowait(error)

    left = list(addresses)
    failures: list[OSError] = []
    try:
        async with open_service_nursery("another address has answered") as attempts:
            while len(failures) < len(addresses):
                if left:
                    attempts.start_soon(attempt, left.pop(0))
                with trio.move_on_after(_HEAD_START if left else math.inf):
                    outcome = await outcomes.receive()
                    if isinstance(outcome, trio.SocketStream):
                        return outcome
                    failures.append(outcome)
    finally:
        _close_all(outcomes)
    raise OSError("all attempts failed") from ExceptionGroup("all attempts failed", failures)


def _close_all(outcomes: trio.MemoryReceiveChannel[trio.SocketStream | OSError]) -> None:
    """Close the connections that came about when one was there already, or after a cancel."""
    try:
        while True:
            outcome = outcomes.receive_nowait()
            if isinstance(outcome, trio.SocketStream):
                outcome.socket.close()
    except trio.WouldBlock:
        pass
