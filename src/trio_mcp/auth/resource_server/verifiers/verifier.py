"""Verifier: tells for whom a token speaks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from ....runtime.principal import Principal

Verify: TypeAlias = Callable[[str], Awaitable[Principal | None]]


class VerifyingObject(Protocol):
    """An object with the function that verifies."""

    async def verify(self, token: str) -> Principal | None:
        """Return the party that ``token`` speaks for, `None` for a token that is not good here. The issuer must
        have meant the token for this server: a token for another resource is not good. Raises
        `VerifierUnavailable`."""
        ...


Verifier: TypeAlias = Verify | VerifyingObject
"""A function ``verify``, or an object with such a method."""


class VerifierUnavailable(Exception):
    """Nobody can say now whether a token is good: the client is asked to come back later, and keeps its token. The
    message is for the log."""


class BuiltInVerifier(ABC):
    """A verifier of this package, which learns from `Protected` for which resource the tokens have to be."""

    @property
    def holds_for(self) -> float:
        """Seconds for which an answer holds."""
        return math.inf

    @abstractmethod
    def at(self, resource: str, authorization_servers: Sequence[str], now: Callable[[], float]) -> VerifyingObject:
        """Return the verifier for ``resource``, whose tokens come from ``authorization_servers`` unless the author has
        said otherwise. ``now`` tells the time in seconds since the epoch. Raises `ValueError` where the two do not
        fit."""
