"""Defects of the checked code, each a small change of one function or two, to see that the explored parts find them."""

from __future__ import annotations

import inspect
import sys
from textwrap import dedent
from types import ModuleType
from typing import Any, Final, TypeAlias

import attrs
from tests.exhaustive import proxies, proxy_parties
from tests.exhaustive.task_parties import Run

from trio_mcp.client import confirming
from trio_mcp.client.confirming import Confirmation
from trio_mcp.proxying import extensions
from trio_mcp.runtime.exchange import Exchange
from trio_mcp.runtime.outbound import Outbound
from trio_mcp.runtime.requests.endings import Ending, Endings
from trio_mcp.runtime.requests.scope import RequestScope
from trio_mcp.state.connection import ConnectionState
from trio_mcp.state.stateless import StatelessState
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.tasks import transitions
from trio_mcp.tasks.records import TaskRecords

__all__ = ["DEFECTS", "Defect", "Patch"]

Patch: TypeAlias = tuple[type | ModuleType, str, str, str]
"""A function: where it is and its name; then the text that is replaced in it, and the text in its place."""


@attrs.frozen
class Defect:
    """A defect, and the part that finds it at this ``size``."""

    words: str
    part: str
    size: int
    patches: tuple[Patch, ...]


def changed(owner: type | ModuleType, name: str, old: str, new: str) -> Any:
    """Return the function ``name`` of ``owner`` with ``new`` in place of ``old``, which its text must have once."""
    member = inspect.getattr_static(owner, name)
    function: Any = member.fget if isinstance(member, property) else member
    text = dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
    made: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{text.replace(old, new)}", f"<defect of {name}>", "exec")
    exec(code, vars(sys.modules[function.__module__]), made)
    return made[name]


_STATE, _STORE, _RECORDS = ConnectionState, MemoryTaskStore, TaskRecords


def _one(words: str, part: str, size: int, *patch: Any) -> Defect:
    return Defect(words, part, size, (patch,))  # type: ignore[arg-type]


_IS_FINAL: Final = "    if record.phase.is_final:\n        return None\n"

DEFECTS: Final = (
    # Requests of the peer
    _one("a cancelled request is answered", "calls", 1, _STATE, "finish", "return False", "return True"),
    _one(
        "the late end of a request ends the next one under its id",
        *("hostile-client", 4, _STATE, "finish"),
        *("self._inbound.get(request.id) is not request", "request.id not in self._inbound"),
    ),
    _one("a request that was answered stays", "calls", 1, _STATE, "finish", "    del self._inbound[request.id]\n", ""),
    _one("a parked request stays", "rounds", 1, _STATE, "finish", "del self._parked[request.id]", "pass"),
    _one("a cancelled request stays", "hostile-client", 2, _STATE, "_cancelled", "self.finish(entry)", "pass"),
    _one("a parked request is forgotten", "rounds", 1, _STATE, "park", "self._parked[request.id] = request", "pass"),
    _one("a parked request stays in flight", "rounds", 1, _STATE, "park", "if self.finish(request):", "if True:"),
    _one(
        "a cancel between two rounds is ignored",
        *("rounds", 1, _STATE, "_receive_cancel", " or self._parked.get(request_id)", ""),
    ),
    _one(
        "a new request leaves its id to a parked one",
        *("hostile-client-modern", 4, _STATE, "_receive_request", "self._parked.pop(request_id, None)", "pass"),
    ),
    _one(
        "a request replaces another one under its id",
        *("hostile-client", 2, _STATE, "_receive_request", "if request_id in self._inbound:", "if False:"),
    ),
    _one(
        "a request in an array replaces another one",
        *("hostile-client-arrays", 1, _STATE, "_receive_request", "if request_id in self._inbound:", "if False:"),
    ),
    _one(
        "a cancel takes the oldest request",
        *(
            "calls",
            2,
            _STATE,
            "_receive_cancel",
            "self._inbound.get(request_id) or",
            "next(iter(self.inbound), None) or",
        ),
    ),
    # Requests of ours
    _one(
        "no cancel is sent",
        *("calls", 1, _STATE, "abandon", 'return request.method.name != "initialize"', "return False"),
    ),
    _one(
        "no cancel of a question is sent",
        *("questions", 1, _STATE, "abandon", 'return request.method.name != "initialize"'),
        'return request.method.name != "initialize" and self.role == "client"',
    ),
    _one(
        "a client ignores the cancel of a question",
        *("questions", 1, _STATE, "_receive_cancel", "if entry is None:", 'if entry is None or self.role == "client":'),
    ),
    _one(
        "a question is answered after its cancel",
        *("questions", 1, _STATE, "finish", "return False", 'return self.role == "client"'),
    ),
    _one("a call that was left stays", "calls", 1, _STATE, "abandon", "del self._outbound[request.id]", "pass"),
    _one(
        "a call that has ended is cancelled",
        *("hostile-server", 1, _STATE, "abandon", "        return False\n", "        return True\n"),
    ),
    _one("lost calls stay", "loss", 1, _STATE, "abandon_all", "    self._outbound.clear()\n", ""),
    _one(
        "one call never hears of the loss",
        *("loss", 1, _STATE, "abandon_all", "list(self._outbound.values())", "list(self._outbound.values())[1:]"),
    ),
    _one("two calls have one id", "calls", 2, _STATE, "_fresh_id", "self._next_id = request_id + 1", "pass"),
    _one(
        "a call takes the id of a request of the peer",
        *("hostile-server", 1, _STATE, "_fresh_id", "while request_id in self._inbound:", "while False:"),
    ),
    _one(
        "a result comes twice",
        *("hostile-server", 2, _STATE, "receive", "call = self._outbound.pop(message.id, None)"),
        "call = self._outbound.get(message.id)",
    ),
    _one(
        "a call that failed stays",
        *("hostile-server", 1, _STATE, "receive", "else self._outbound.pop(message.id, None)"),
        "else self._outbound.get(message.id)",
    ),
    _one(
        "an answer to nothing ends the only call",
        *("hostile-server", 1, _STATE, "_meant", " or _plain(named) != _plain(waiting[0].id)", ""),
    ),
    _one(
        "a call with an unreadable answer stays",
        *("hostile-server", 1, _STATE, "_receive_bad_answer", "self._outbound.pop(answer.settles, None)"),
        "self._outbound.get(answer.settles)",
    ),
    _one(
        "an unreadable answer is ignored",
        *("hostile-server", 1, _STATE, "_receive_bad_answer", "if answer.settles is not None:", "if False:"),
    ),
    _one(
        "a call that was sent back stays",
        *(
            "hostile-server",
            1,
            _STATE,
            "_receive_request",
            "self._outbound.pop(request_id)",
            "self._outbound[request_id]",
        ),
    ),
    _one(
        "progress goes to the oldest call",
        *(
            "hostile-server",
            1,
            _STATE,
            "_receive_progress",
            "self._outbound.get(token) if is_request_id(token) else None",
        ),
        "next(iter(self._outbound.values()), None)",
    ),
    _one(
        "a modern client answers a server's request",
        *("hostile-server-modern", 1, _STATE, "_never_replies", "not self.revision.server_requests", "False"),
    ),
    _one(
        "the first of an array is taken for all",
        *(
            "batches",
            2,
            _STATE,
            "_receive_batch",
            "self._receive_member(member)",
            "self._receive_member(batch.members[0])",
        ),
    ),
    _one(
        "a closed exchange is answered",
        *("exchanges", 1, StatelessState, "finish", "return False", "return True"),
    ),
    _one(
        "a cancel names a request of another exchange",
        *("exchanges", 1, StatelessState, "receive", 'Ignored("a notification that belongs to no connection")'),
        "self._cancelled(next(iter(self._open)), None) if self._open else Ignored('')",
    ),
    _one(
        "a parked request stays open", *("exchanges", 1, StatelessState, "park", "self._open.discard(request)", "pass")
    ),
    # Confirmed cancels through a proxy
    _one(
        "a cancel that was sent is forgotten",
        *("proxy-calls", 1, Confirmation, "_on_left", "or end is None", "and end is None"),
    ),
    _one(
        "a lost connection counts as a reply",
        *("proxy-loss", 1, confirming, "_reported_by", "isinstance(end.error, PeerError)", "True"),
    ),
    _one(
        "a server that is lost before the cancel counts as stopped",
        *("proxy-loss", 1, proxies, "asking_behind", "elif isinstance(error, Exception):", "elif False:"),
    ),
    _one(
        "an error reply of the server counts as lost",
        *("proxy-loss", 0, proxies, "asking_behind", "elif isinstance(error, PeerError):", "elif False:"),
    ),
    _one(
        "the result of a cancelled call counts as stopped",
        *("proxy-calls", 1, proxies, "asking_behind"),
        *('    ending.note_behind(CancelResult("finished", outcome="result", behind="finished"))\n', ""),
    ),
    _one(
        "a call that never left the proxy counts as lost",
        *("proxy-calls", 1, proxies, "asking_behind", 'if endings[-1].state != "unsent":', "if True:"),
    ),
    _one(
        "a proxy reports a state that only callers have",
        *("proxy-loss", 1, extensions, "_reported_state", "ending.state not in CANCEL_STATES", "False"),
    ),
    _one(
        "a confirmation does not wait for the handler",
        *("proxy-calls", 1, proxy_parties, "cancel_abandoned"),
        *("LATER if found is None else Now(found)", 'Now(found or {"state": "stopped"})'),
    ),
    _one(
        "a reply that was not sent counts as stopped",
        *("proxy-loss", 0, Ending, "end", "has_reply or cancelled is None", "cancelled is None"),
    ),
    _one(
        "an abandoned thread counts as stopped",
        *("proxy-waits", 0, Ending, "end", 'CancelResult("abandoned") if self.is_abandoned else ended', "ended"),
    ),
    _one(
        "a handler that has run counts as one that has not",
        *("proxy-calls", 1, Ending, "end", "True if scope.handler_task is None else None", "True"),
    ),
    _one(
        "a proxy reports only its own part",
        *("proxy-calls", 1, Ending, "end", 'CancelResult("stopped") if self._behind is None else self._behind'),
        'CancelResult("stopped")',
    ),
    _one(
        "a confirmation cancels the oldest call",
        *("proxy-calls", 2, Endings, "cancel", "self._all.get((principal, params.cancel_token))"),
        "next(iter(self._all.values()), None)",
    ),
    _one(
        "an ending stays counted for its caller",
        *("proxy-calls", 1, Endings, "_forget", "self._of_callers.remove(ending.caller, ending)", "pass"),
    ),
    _one(
        "an ending is never forgotten",
        *("proxy-calls", 1, Endings, "_forget", "self._all.get(ending.key) is ending", "False"),
    ),
    _one(
        "a request of a lost connection stays",
        *("proxy-loss", 1, proxy_parties.Runner, "cancel", "exchange.state.finish(request)", "pass"),
    ),
    _one(
        "a cancelled handler may still reply",
        *("proxy-calls", 1, RequestScope, "cancel", "self.advance(Step.MUTE)", "pass"),
    ),
    _one(
        "the server is not notified of a cancel",
        *("proxy-calls", 1, Outbound, "_abandon", "self._send_cancel(request.id, error, outbox)", "pass"),
    ),
    _one(
        "one call of a proxy never ends with its connection",
        *("proxy-loss", 1, Outbound, "fail_all", "self._state.abandon_all()", "self._state.abandon_all()[1:]"),
    ),
    _one(
        "a handler outlives its connection",
        *("proxy-loss", 1, Exchange, "cancel_all", "tuple(self._held.values())", "tuple(self._held.values())[1:]"),
    ),
    # Tasks
    _one(
        "a write replaces what its writer has not seen",
        *("task-leases", 0, _STORE, "change", "kept.mark != expected_mark or ", ""),
    ),
    _one("marks stay", "task-store", 0, _RECORDS, "change", "mark=new_mark()", "mark=record.mark"),
    Defect(
        "anybody may write",
        "task-leases",
        0,
        (
            (_STORE, "change", " or (holder is not None and kept.holder != holder)", ""),
            (_RECORDS, "change", "if holder is not None and record.holder != holder and", "if False and"),
        ),
    ),
    _one(
        "a task that has ended has a holder",
        *("task-store", 0, _STORE, "change", "holder=None if lets_go else kept.holder", "holder=kept.holder"),
    ),
    _one("a lease counts for nothing", "task-leases", 0, _STORE, "claim", "leased_until < now and ", ""),
    _one(
        "a task that has ended is claimed",
        *("task-leases", 0, _STORE, "_put", "self._open.pop(record.id, None)", "pass"),
    ),
    _one("a former holder keeps its lease", "task-leases", 0, _STORE, "renew", " or record.holder != holder", ""),
    _one("a renewal is lost", "task-leases", 0, _STORE, "renew", "self._leases[task_id] = until", "pass"),
    _one(
        "a creation that was given up happens",
        *("task-store", 1, _STORE, "create", " or self._discarded.get(new.id, now) > now", ""),
    ),
    _one(
        "a creation under way is not given up",
        *("task-store", 1, _STORE, "discard", "self._discarded[task_id] = now + retention_ms", "pass"),
    ),
    _one(
        "a task is not given up",
        *("task-leases", 0, _RECORDS, "change", "following.holder is None and record.holder is not None", "False"),
    ),
    _one("a task that has ended is cancelled", "task-store", 0, transitions, "cancelled", _IS_FINAL, ""),
    _one("an outcome is tried for ever", "task-store", 0, transitions, "with_outcome", _IS_FINAL, ""),
    _one("a claimed task is begun after its end", "task-leases", 0, transitions, "reclaimed", _IS_FINAL, ""),
    _one(
        "an answered question waits on",
        *("task-questions", 0, transitions, "_without", "TaskPhase.INPUT_REQUIRED if left else TaskPhase.WORKING"),
        "TaskPhase.INPUT_REQUIRED",
    ),
    _one(
        "a question does not wait",
        *("task-questions", 0, transitions, "asked", "TaskPhase.INPUT_REQUIRED if left else TaskPhase.WORKING"),
        "TaskPhase.WORKING",
    ),
    _one("questions outlive their task", "task-questions", 0, transitions, "_final", "        questions={},\n", ""),
    _one(
        "a task is tried for ever",
        *("task-deaths", 1, transitions, "reclaimed", "if attempt > most_attempts:", "if False:"),
    ),
    _one(
        "attempts are not counted",
        *("task-leases", 0, transitions, "reclaimed", "attempt=attempt,", "attempt=record.attempt,"),
    ),
    _one(
        "a process goes on under the claim of another",
        *("task-leases", 0, Run, "reacquire", "_process_of(record.holder) != _process_of(self.holder)", "False"),
    ),
)
