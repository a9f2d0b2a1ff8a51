"""CoreQuestions asks the questions of tasks in the form of 2025-11-25: by requests to the client.

`CoreClient` is the party that has asked for the task, and is told of each status, too. A record keeps an answer, which
is an object, or the error with which the client has answered, as an array: the code and the message, and the data.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..jsonrpc.codec import decode_value, encode_value, frame_notification
from ..jsonrpc.errors import TOO_BUSY, MCPError, PeerError, ProtocolViolation
from ..protocol.converters import unstructure
from ..protocol.errors import NoBackChannel
from ..protocol.fields import JSONObject
from ..protocol.meta import with_related_task
from ..protocol.types.input_required import InputRequest, capability_for
from ..runtime.outbox import Owner
from ..runtime.transport import ConnectionLost
from .record_views import core_task

if TYPE_CHECKING:
    from ..protocol.revisions import Revision
    from ..runtime.calls import CallOwner, DetachedCall, OnProgress
    from ..runtime.exchange import ClientChannel
    from ..runtime.outbox import Outbox
    from ..runtime.requests.runner import RequestRunner
    from ..state.requests import InboundRequest
    from ..stores.task_store import TaskRecord
    from .records import TaskRecords

logger = logging.getLogger("trio_mcp")


class TaskClientChannel:
    """A way to a client: ``line``, on which ``runner``, which runs the requests of the client, can send requests. The
    client is the one that has sent ``request``."""

    __slots__ = ("_line", "_request", "_runner", "is_lost")

    def __init__(self, request: InboundRequest, runner: RequestRunner, line: ClientChannel) -> None:
        self._request = request
        self._runner = runner
        self._line = line
        self.is_lost = runner.post is None or runner.stateless
        """True once no answer can come any more."""

    @property
    def is_open(self) -> bool:
        """True while lines that are sent now come to the client."""
        return not self.is_lost and self._line.is_open

    @property
    def outbox(self) -> Outbox:
        """The outbox of the lines to the client."""
        return self._line.outbox

    @property
    def revision(self) -> Revision:
        """The revision that the client speaks."""
        return self._request.revision

    def mark_lost(self) -> None:
        """Note that no answer can come any more."""
        self.is_lost = True

    def admits(self, question: InputRequest) -> bool:
        """Return whether the client has declared the capabilities that an answer takes."""
        return not self._request.missing(capability_for(question))

    def send_question(self, question: InputRequest, task_id: str, owner: CallOwner, key: str) -> DetachedCall:
        """Ask for a task. Raises `ConnectionLost`."""
        assert self._runner.post is not None, "the way is open"
        params = with_related_task(question.params, task_id)  # 2025-11-25 tasks, Input Required Status 2: MUST
        return self._runner.post(question.method, params, self.revision, owner, key, self.outbox)

    def ask(
        self, method: str, params: dict[str, Any] | None, task_id: str, on_progress: OnProgress | None
    ) -> Awaitable[Any]:
        """Send a request of a task that is no question, and wait for its result."""
        if not method.startswith("tasks/"):
            # 2025-11-25 tasks, Related Task Metadata: MUST be in all requests but those about a task.
            params = with_related_task(params, task_id)
        return self._runner.ask(method, params, self.revision, on_progress, outbox=self.outbox)


class CoreQuestions:
    """Asks the questions in the ``records`` of tasks. ``start`` starts a function in the background.

    A question goes by one way, and by another one when the former is not open any more: then both may bring the answer,
    and the first counts. The record has the answers, so a question is never lost, and has one answer.
    """

    def __init__(self, records: TaskRecords, start: Callable[..., None]) -> None:
        self._records = records
        self._start: Callable[..., None] | None = start
        self._askers: dict[str, tuple[Asker, ...]] = {}
        """Askers with a question out, by the ids of their tasks."""

    async def until_final(self, scope: str, task_id: str, channel: TaskClientChannel) -> TaskRecord | None:
        """Wait until the task has ended or was cancelled, and return its record; `None` where there is none (any
        more). Its questions are asked meanwhile, by ``channel``."""
        record = await self._records.read(scope, task_id)
        if record is None or record.phase.is_final:
            return record
        asker = Asker(self, task_id, channel)
        with self._records.change_signal(task_id) as watch:
            try:
                while True:
                    record = await self._records.read(scope, task_id)
                    if record is not None:
                        asker.update(record)
                    if record is None or record.phase.is_final:
                        return record
                    await watch.next_poll()
            except BaseException as error:
                asker.withdraw_all(error)
                raise
            finally:
                asker.withdraw_all("there is no such task any more")

    def remind(self, record: TaskRecord) -> None:
        """Have all who can ask look again, where a question is not out: the client may listen by now."""
        if any(not self.is_asked(record.id, key) for key in record.questions):
            self.changed(record.id)

    def is_asked(self, task_id: str, key: str) -> bool:
        """Return whether a question is out, by a way that is open."""
        return any(asker.has_asked(key) and asker.channel.is_open for asker in self._askers.get(task_id, ()))

    def add(self, task_id: str, asker: Asker) -> None:
        """Note who has asked."""
        self._askers[task_id] = (*self._askers.get(task_id, ()), asker)

    def remove(self, task_id: str, asker: Asker) -> None:
        """Note who has no question out any more. Others may ask now."""
        left = tuple(each for each in self._askers.pop(task_id, ()) if each is not asker)
        if left:
            self._askers[task_id] = left
        self.changed(task_id)

    def changed(self, task_id: str) -> None:
        """Have all who can ask look again."""
        self._records.changed(task_id)

    def persist(self, asker: Asker, call: DetachedCall, task_id: str, answer: bytes) -> None:
        """Have the answer to a question written into the record before long."""
        if self._start is not None:
            self._start(self._persist, asker, call, task_id, answer)

    def close(self) -> None:
        """Drop the function that starts others: tasks end here."""
        self._start = None

    async def _persist(self, asker: Asker, call: DetachedCall, task_id: str, answer: bytes) -> None:
        if len(answer) > self._records.settings.max_record_bytes:
            answer = encode_refusal(ProtocolViolation("the answer is too long to be kept"))
        try:
            await self._records.add_answers(task_id, {call.name: answer})
        except Exception:
            logger.exception("an answer to task %s could not be kept; it is asked again", task_id)
            asker.ask_again(call)


class Asker(Owner):
    """Asks the questions of one task by ``channel``."""

    __slots__ = ("_outstanding", "_questions", "_task_id", "channel")

    def __init__(self, questions: CoreQuestions, task_id: str, channel: TaskClientChannel) -> None:
        super().__init__()
        self._questions = questions
        self._task_id = task_id
        self.channel = channel
        self._outstanding: tuple[DetachedCall, ...] = ()
        """Questions that were asked and are in the record, named by their keys."""

    def has_asked(self, key: str) -> bool:
        """Return whether a question is out, or its answer is about to be kept."""
        return any(posted.name == key for posted in self._outstanding)

    def update(self, record: TaskRecord) -> None:
        """Take back the questions that ``record`` has no more, and ask all others that are not out. Synchronous."""
        over = tuple(posted for posted in self._outstanding if posted.name not in record.questions)
        for posted in over:
            posted.abandon(record.cancel_reason or "the question was answered, or given up")
        asked = tuple(self._ask_missing(record)) if self.channel.is_open else ()
        self._set((*(posted for posted in self._outstanding if posted not in over), *asked))

    def _ask_missing(self, record: TaskRecord) -> Iterator[DetachedCall]:
        """Ask the questions that are not out, and return all that are out then."""
        for key, text in record.questions.items():
            if not (self.has_asked(key) or self._questions.is_asked(record.id, key)):
                question = InputRequest(**decode_value(text))
                if self.channel.admits(question):
                    try:
                        yield self.channel.send_question(question, record.id, self, key)
                    except ConnectionLost:
                        self.channel.mark_lost()
                        return

    def _set(self, out: tuple[DetachedCall, ...]) -> None:
        had, self._outstanding = self._outstanding, out
        if out and not had:
            self._questions.add(self._task_id, self)
        elif had and not out:
            self._questions.remove(self._task_id, self)

    def withdraw_all(self, reason: str | BaseException) -> None:
        """Take back all questions. Idempotent."""
        for posted in self._outstanding:
            posted.abandon(reason)
        self._set(())

    def ask_again(self, call: DetachedCall) -> None:
        """Have a question asked again, whose answer was lost."""
        self._set(tuple(each for each in self._outstanding if each is not call))
        self._questions.changed(self._task_id)

    def receive_outcome(self, call: DetachedCall, result: Any, error: MCPError | None) -> None:
        """Take the answer of the client. See `CallOwner`."""
        if isinstance(error, ConnectionLost) or _is_busy(error):
            self.channel.mark_lost()
            self.ask_again(call)
        else:
            self._questions.persist(self, call, self._task_id, _encode_answer(result, error))


def _is_busy(error: MCPError | None) -> bool:
    """Return whether a client takes no questions now, being about to leave or having too many: that is no answer,
    and anybody who wants the result of the task is asked."""
    return isinstance(error, PeerError) and error.code == TOO_BUSY


def _encode_answer(answer: Any, error: MCPError | None) -> bytes:
    """Return an answer as a record keeps answers."""
    return encode_value(answer) if error is None and isinstance(answer, dict) else encode_refusal(error)


class CoreClient(Asker):
    """Tells the requestor of the task ``task_id``, by ``channel``, of each status, and asks the questions there.

    Only the latest status waits to be told; nothing waits for a client that is away or reads nothing, since no
    client may rely on being told (2025-11-25 tasks, Task Notifications).
    """

    __slots__ = ("_status",)

    def __init__(self, questions: CoreQuestions, task_id: str, channel: TaskClientChannel) -> None:
        super().__init__(questions, task_id, channel)
        self._status = "working"

    def notify(self, record: TaskRecord) -> None:
        """Take the next record of the task. Synchronous."""
        self._notify_status(record)
        self.update(record)

    def _notify_status(self, record: TaskRecord) -> None:
        task, way = core_task(record), self.channel
        if task.status == self._status or not way.is_open:
            return
        way.outbox.withdraw(self)
        if not way.outbox.is_full():
            self._status = task.status
            line = frame_notification("notifications/tasks/status", unstructure(task, way.revision))
            way.outbox.put(line + b"\n", self)

    def ask(self, method: str, params: dict[str, Any] | None, on_progress: OnProgress | None) -> Awaitable[Any]:
        """Send a request of the handler that is no question. Raises `NoBackChannel` while the client is away."""
        if not self.channel.is_open:
            raise NoBackChannel("the client that has asked for this task is away")
        return self.channel.ask(method, params, self._task_id, on_progress)


_NO_ANSWER = "the answer to a question of a task is no object"


def encode_refusal(error: MCPError | None) -> bytes:
    """Return the form in which ``error`` is kept; `None`: the answer was no object."""
    if isinstance(error, PeerError):
        return encode_value([error.code, error.message, error.data])
    return encode_value([None, _NO_ANSWER if error is None else str(error), None])


def decode_answer(text: bytes) -> JSONObject | MCPError:
    """Return the answer that a record keeps, or the error instead of an answer."""
    kept: Any = decode_value(text)
    if isinstance(kept, dict):
        return kept  # pyright: ignore[reportUnknownVariableType]
    code, message, data = kept
    return ProtocolViolation(message) if code is None else PeerError(code, message, data)
