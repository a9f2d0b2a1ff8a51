"""TaskRecord is all that is kept of a task, so that another process can tell its end, or run the task again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import attrs

OnRestart: TypeAlias = Literal["fail", "again", "resume"]
"""Fate of a task after the death of its process: the task fails, runs again from the top, or runs again and is
given its last checkpoint."""

_NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})
_NEVER_ASKED: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class TaskPhase(StrEnum):
    """The phases in the life of a task. Each protocol has its own words for the phase and the outcome together."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    """At least one question has no answer yet. The handler may work on meanwhile."""
    ENDED = "ended"
    """The task has an outcome: a result, `isError` or not, or an error."""
    CANCELLED = "cancelled"
    """The task was cancelled, and stays so; the end of its handler changes nothing."""

    @property
    def is_final(self) -> bool:
        """True when no other phase follows."""
        return self is TaskPhase.ENDED or self is TaskPhase.CANCELLED


@attrs.frozen
class Outcome:
    """The end of the request that a task runs, as JSON text: a result, or the error object of JSON-RPC."""

    json: bytes
    is_error: bool = False
    """True for an error of JSON-RPC."""
    tells_failure: bool = False
    """True for the result of a tool with ``isError``."""


@attrs.frozen(kw_only=True, weakref_slot=False)
class TaskRecord:
    """The state of one task. Values are JSON text that was checked on arrival; times are milliseconds since the
    epoch, by the clock of the store.

    A record is never changed: `attrs.evolve` makes the next one, with the next ``version`` and another ``mark``.
    """

    id: str
    """Unguessable, since without a principal the id alone gives access (2025-11-25 tasks, Task Isolation)."""
    scope: str
    """Principal that the task belongs to, as JSON text of issuer and subject; empty where the transport knows no
    principal."""
    method: str
    """Method of the request that the task runs."""
    name: str
    """Name of the tool."""
    params: bytes
    """Parameters of the request, ``_meta`` included. Empty at the end, as are ``capabilities`` and ``answers``."""
    revision: str
    """Protocol revision of the request; its result is in the terms of that revision."""
    capabilities: bytes
    """Capabilities that the client declared for the request."""
    on_restart: OnRestart = "fail"
    is_external: bool = False
    """True where the work is done elsewhere, and its outcome is stored from outside: nobody runs or claims the task."""
    created_at: int = 0
    """Time of the creation, as the store has filled in, like the times that follow."""
    place: int = 0
    """Place in the lists of the scope, which the store fills in: the later a task was created, the greater."""
    updated_at: int = 0
    """Time of the last change of the phase or the message."""
    expires_at: int | None = None
    """Time at which a task that has not ended fails; `None`: never."""
    kept_until: int | None = None
    """Time after which the record may be deleted; `None`: never."""
    poll_ms: int
    """Milliseconds that a client is advised to wait between two looks."""
    phase: TaskPhase = TaskPhase.WORKING
    message: str | None = None
    """Text for people on the present phase."""
    questions: Mapping[str, bytes] = _NOTHING
    """Questions without an answer, by their keys, in the order of asking."""
    answers: Mapping[str, bytes] = _NOTHING
    """Answers so far, by the keys of their questions. No key is used twice."""
    outcome: Outcome | None = None
    """The outcome; `None` in all phases but `TaskPhase.ENDED`."""
    checkpoint: bytes | None = None
    """Last value that the handler gave to `checkpoint`."""
    cancel_reason: str | None = None
    attempt: int = 1
    """Number of runs so far, without the runs that were given up in good order."""
    holder: str | None = None
    """Token of the claim by which a process runs the task, ``<process>:<random>``, which no other claim ever has;
    `None`: no process runs the task, and any may claim the task."""
    epoch: int = 0
    """Number of the claims so far, for people and for logs. The number decides nothing."""
    leased_until: int = 0
    """Time after which the holder is taken for dead; 0 without a holder."""
    version: int = 0
    """Number of the changes so far. The number decides nothing: after a loss, equal numbers may stand for different
    contents."""
    mark: bytes = b""
    """Random bytes that each write puts on the record: equal marks stand for equal records."""
    asked: Mapping[str, Sequence[str]] = _NEVER_ASKED
    """The questions that a further run may come to, in the order of asking: those that were asked since the start or,
    for a task that resumes, since the checkpoint. By the key of each, the keys of the earlier ones that it was asked
    beside; a question that is neither in ``questions`` nor in ``answers`` was given up."""
    continuation: bytes | None = None
    """Answers and state with which the client came back before the task began, for a handler that returns its
    questions: an array of the two."""

    @property
    def size(self) -> int:
        """Number of bytes of all JSON text in the record."""
        texts = (self.params, self.capabilities, self.checkpoint or b"", self.continuation or b"")
        outcome = self.outcome.json if self.outcome else b""
        return sum(map(len, (*texts, *self.questions.values(), *self.answers.values(), outcome)))

    @property
    def is_open(self) -> bool:
        """True for a task that some process has to run to its end."""
        return not (self.phase.is_final or self.is_external)

    @property
    def ttl_ms(self) -> int | None:
        """Milliseconds from the creation until the task expires; `None`: never."""
        return None if self.expires_at is None else self.expires_at - self.created_at
