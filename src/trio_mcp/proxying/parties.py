"""Parties: the callers of a server behind a proxy, some of whom may have left before a question arrives."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import CodedError
from ..runtime.exchange import Exchange
from ..runtime.peer import EVERYBODY
from ..runtime.requests.scope import RequestScope

_FEW: Final = 16


class Parties:
    """The parties that have called one server. Without principals, each is a connection or a legacy session.

    A legacy server doesn't say for which call it asks. Even if only one party has a call in flight, a question may be
    a late one for a party that has left: one that cancelled a call, or whose connection has ended. The proxy must not
    guess then.
    """

    def __init__(self) -> None:
        self._present: set[Exchange] = set()
        self._most = _FEW
        self._gone: set[object] = set()
        """Parties that have left: at most two, since one other party is enough to refuse."""

    @contextmanager
    def calling(self, scope: RequestScope) -> Generator[None]:
        """Forward the call of ``scope`` in the block. The block raises `CodedError` if the server has answered or is
        lost, and any other exception if the call is cancelled."""
        party = scope.exchange.party
        if isinstance(party, Exchange):
            self._present.add(party)
            if len(self._present) > self._most:
                self._forget_ended()
        try:
            yield
        except CodedError:
            raise
        except BaseException:
            self._note_gone(party)
            raise

    def may_mean(self, party: object) -> bool:
        """Return false if a question may be a late one for another party than ``party``. All clients of an endpoint
        over modern HTTP without authorization are one party, which may itself have left."""
        self._forget_ended()
        return not self._gone if party is EVERYBODY else self._gone <= {party}

    def _forget_ended(self) -> None:
        for party in [each for each in self._present if each.ending.is_set()]:
            self._present.discard(party)
            self._note_gone(party)
        self._most = max(_FEW, 2 * len(self._present))

    def _note_gone(self, party: object) -> None:
        if len(self._gone) < 2:
            self._gone.add(party)
