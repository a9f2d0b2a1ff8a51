"""Parties: the callers of a server behind a proxy, some of whom may have given up a call."""

from __future__ import annotations

from collections.abc import Generator

from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import CodedError
from ..runtime.peer import ANY_CLIENT
from ..runtime.requests.scope import RequestScope


class Parties:
    """The parties that have given up a call of one server. Without principals, each connection and each legacy session
    is a party.

    A legacy server doesn't say for which call it asks, and may ignore a cancel. So a question that comes while a single
    party has a call in progress may still belong to a call that another party has given up.
    """

    def __init__(self) -> None:
        self._gave_up: set[object] = set()
        """At most two parties, since any second one is enough."""

    @contextmanager
    def calling(self, scope: RequestScope) -> Generator[None]:
        """Forward the call of ``scope`` in the block, which raises `CodedError` if the server has answered or is lost,
        and any other exception if the call is given up."""
        try:
            yield
        except CodedError:
            raise
        except BaseException:
            if len(self._gave_up) < 2:
                self._gave_up.add(scope.exchange.party)
            raise

    def abandoned_only_by(self, party: object) -> bool:
        """Return whether no party other than ``party`` has given up a call. All clients of an endpoint over modern HTTP
        without authorization are one party, but may be different users: for them, no call may have been given up."""
        return not self._gave_up if party is ANY_CLIENT else self._gave_up <= {party}
