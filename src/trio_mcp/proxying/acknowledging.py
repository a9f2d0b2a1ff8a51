"""The ends of calls that the clients of a proxy have left: `CancelAcknowledged`, which a proxy answers for itself.

A proxy waits for its own part of a call, and for the end of the call at the server behind, under a token of its own, so
that neither the eras of both sides nor the number of clients on a connection matter. A server behind without the
extension was told, and cannot say.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from ..client.confirming import confirm_cancels
from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import PeerError
from ..protocol.cancel_acknowledged import CANCEL_STATES, NAME, CancelAcknowledged, CancelResult
from ..protocol.errors import CapabilityMissing
from ..protocol.extensions import declared_in
from ..runtime.requests.endings import Endings
from ..runtime.requests.host import LATER, Decision, Now, RequestHost

if TYPE_CHECKING:
    from ..client.confirming import CallEnding
    from ..protocol.fields import JSONObject
    from ..runtime.exchange import Exchange
    from ..runtime.requests.scope import RequestScope
    from ..state.requests import InboundRequest

CANCELS: Final = CancelAcknowledged()
_LEAST_WAIT: Final = 0.001
"""Seconds: without any grace, the call is told to stop, and nobody waits for the answer."""
_CAPABILITY: Final = f"extensions.{NAME}"


def remember_endings(host: RequestHost) -> None:
    """Have ``host`` remember how the calls of its clients end."""
    host.endings = Endings(host.alarms, host.limits, CANCELS.max_wait)


def with_cancels(extensions: JSONObject | None, request: InboundRequest) -> JSONObject | None:
    """Return the ``extensions`` of the server behind that pass, and, for a client that has it, the one that the proxy
    answers for itself."""
    if request.missing((_CAPABILITY,)):
        return extensions
    return {**(extensions or {}), **declared_in(request.revision, [CANCELS], "server")}


def cancel_abandoned(request: InboundRequest, exchange: Exchange, host: RequestHost) -> Decision:
    """Cancel the call that ``request`` asks about, and answer where the call is over. Raises `CapabilityMissing` for a
    client that has not declared the extension."""
    if missing := request.missing((_CAPABILITY,)):
        raise CapabilityMissing(missing, request.revision)
    assert host.endings is not None, "a proxy remembers endings"
    found = host.endings.cancel(request, exchange.peer.principal)
    return LATER if found is None else Now(found)


async def wait_for_call_end(scope: RequestScope, host: RequestHost) -> JSONObject:
    """Wait for the end of the call that the request of ``scope`` asks about, and return how the call ended."""
    assert host.endings is not None, "a proxy remembers endings"
    return await host.endings.over(scope.request, scope.exchange.peer.principal)


@contextmanager
def asking_behind(scope: RequestScope) -> Generator[None]:
    """Ask the server behind how the calls of the body end, if they are left, where the client of ``scope`` may ask. The
    wait is a part of the cleanup of ``scope``, bounded by `Limits.cleanup_grace` and `CancelAcknowledged.max_wait`."""
    ending = scope.ending
    if ending is None:
        yield
        return
    within = min(max(scope.runner.limits.cleanup_grace, _LEAST_WAIT), CANCELS.max_wait)
    with confirm_cancels(within=within) as endings:
        try:
            yield
        except BaseException as error:
            if not endings and isinstance(error, PeerError):
                ending.note_behind(CancelResult("finished", outcome="error", behind="finished"))
            elif endings and endings[-1].state != "unsent":  # what was never sent is over with the proxy's own part
                ending.note_behind(_reported_state(endings[-1]))
            raise
    ending.note_behind(CancelResult("finished", outcome="result", behind="finished"))


def _reported_state(ending: CallEnding) -> CancelResult:
    """Return the state of a call that is over here, and ended so at the server behind."""
    if ending.state not in CANCEL_STATES:  # the server behind did not say
        return CancelResult("relayed")
    return CancelResult(ending.state, outcome=ending.outcome, behind=ending.state)
