"""`CoreQuestions`: sends the elicitation and sampling requests of a background task to the client, in the form of
2025-11-25.

`CoreClient` is the client that requested the task; it also gets each status. An answer in a record is an object. If the
client answered with an error, the record has an array instead: code, message, and data.
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
    """A channel on which the server-to-client requests of a background task reach the client.

    The connection ``line`` carries the messages. ``request`` is the client's own request, which ``runner`` handles.
    """

    __slots__ = ("_line", "_request", "_runner", "is_lost")

    def __init__(self, request: InboundRequest, runner: RequestRunner, line: ClientChannel) -> None:
        self._request = request
        self._runner = runner
        self._line = line
        self.is_lost = runner.post is None or runner.stateless
        """True once the client's answers can no longer arrive."""

    @property
    def is_open(self) -> bool:
        """True while a message that is sent on this channel can reach the client."""
        return not self.is_lost and self._line.is_open

    @property
    def outbox(self) -> Outbox:
        """The queue of messages that will be sent to the client on this channel."""
        return self._line.outbox

    @property
    def revision(self) -> Revision:
        """The protocol revision of the client's request."""
        return self._request.revision

    def admits(self, question: InputRequest) -> bool:
        """Return whether the client has declared the capabilities that ``question``, an elicitation, sampling or roots
        request, requires."""
        return not self._request.missing(capability_for(question))

    def send_question(self, question: InputRequest, task_id: str, owner: CallOwner, key: str) -> DetachedCall:
        """Send an elicitation, sampling or roots request of a background task to the client.

        Raises `ConnectionLost` if the connection is lost.
        """
        assert self._runner.post is not None, "the way is open"
        # 2025-11-25 tasks, Input Required Status 2: the request must contain the id of its task.
        params = with_related_task(question.params, task_id)
        return self._runner.post(question.method, params, self.revision, owner, key, self.outbox)

    def ask(
        self, method: str, params: dict[str, Any] | None, task_id: str, on_progress: OnProgress | None
    ) -> Awaitable[Any]:
        """Send a request of the task's handler to the client on this channel, and return the client's result.

        Requests of this kind can't be stored in the task record.
        """
        if not method.startswith("tasks/"):
            # 2025-11-25 tasks, Related Task Metadata: add the task's id to all requests except tasks/ requests.
            params = with_related_task(params, task_id)
        return self._runner.ask(method, params, self.revision, on_progress, outbox=self.outbox)


class CoreQuestions:
    """Sends elicitation and sampling requests to the clients of background tasks. The requests are stored in the task
    ``records``.

    ``start`` runs a function in the background.

    Each request is sent on one channel. If that channel closes, the request is sent on another one. If answers arrive
    on both channels, the first one is used. Answers are stored in the record, so that no request is lost.
    """

    def __init__(self, records: TaskRecords, start: Callable[..., None]) -> None:
        self._records = records
        self._start: Callable[..., None] | None = start
        self._askers: dict[str, tuple[Asker, ...]] = {}
        """The `Asker` objects that have sent the input requests of a task to the client and wait for responses, by task
        id."""

    async def until_final(self, scope: str, task_id: str, channel: TaskClientChannel) -> TaskRecord | None:
        """Wait until the background task has ended, and return its record.

        Returns `None` if the record doesn't exist or was deleted.

        In the meantime, send the task's elicitation and sampling requests on ``channel``.
        """
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
                asker.withdraw_all("the task no longer exists")

    def remind(self, record: TaskRecord) -> None:
        """Try again to send the input requests in ``record`` that weren't sent yet.

        They are elicitation and sampling requests. The client may have opened an SSE stream since the last attempt.
        """
        if any(not self.is_asked(record.id, key) for key in record.questions):
            self.changed(record.id)

    def is_asked(self, task_id: str, key: str) -> bool:
        """Return whether the task's input request ``key`` was sent to a client that is still connected and may still
        respond."""
        return any(asker.has_asked(key) and asker.channel.is_open for asker in self._askers.get(task_id, ()))

    def add(self, task_id: str, asker: Asker) -> None:
        """Register ``asker``, which has sent input requests of the task to the client and waits for the responses."""
        self._askers[task_id] = (*self._askers.get(task_id, ()), asker)

    def remove(self, task_id: str, asker: Asker) -> None:
        """Remove ``asker``, which has sent input requests of the task and no longer waits for the responses. Then
        another `Asker` may send these requests."""
        left = tuple(each for each in self._askers.pop(task_id, ()) if each is not asker)
        if left:
            self._askers[task_id] = left
        self.changed(task_id)

    def changed(self, task_id: str) -> None:
        """Make each `Asker`, a sender of the task's input requests, read the task record for requests to send."""
        self._records.changed(task_id)

    def persist(self, asker: Asker, call: DetachedCall, task_id: str, answer: bytes) -> None:
        """Write the client's response to an input request into the task record, in the background."""
        if self._start is not None:
            self._start(self._persist, asker, call, task_id, answer)

    def close(self) -> None:
        """Start no further background work, because the task host is ending."""
        self._start = None

    async def _persist(self, asker: Asker, call: DetachedCall, task_id: str, answer: bytes) -> None:
        if len(answer) > self._records.settings.max_record_bytes:
            answer = encode_refusal(ProtocolViolation("the answer is too long to store"))
        try:
            await self._records.add_answers(task_id, {call.name: answer})
        except Exception:
            logger.exception("an answer to task %s could not be stored; the question is sent again", task_id)
            asker.ask_again(call)


class Asker(Owner):
    """Sends the elicitation and sampling requests of one task to the client on one channel."""

    __slots__ = ("_outstanding", "_questions", "_task_id", "channel")

    def __init__(self, questions: CoreQuestions, task_id: str, channel: TaskClientChannel) -> None:
        super().__init__()
        self._questions = questions
        self._task_id = task_id
        self.channel = channel
        self._outstanding: tuple[DetachedCall, ...] = ()
        """The stored input requests that were sent to the client and have no response yet, by their keys in the
        record."""

    def has_asked(self, key: str) -> bool:
        """Return whether the input request ``key`` was sent on this channel, and no response to it is stored yet."""
        return any(posted.name == key for posted in self._outstanding)

    def update(self, record: TaskRecord) -> None:
        """Send the input requests in ``record`` that weren't sent yet, and cancel those that ``record`` no longer
        contains. Synchronous."""
        over = tuple(posted for posted in self._outstanding if posted.name not in record.questions)
        for posted in over:
            posted.abandon(record.cancel_reason or "the question was answered or withdrawn")
        asked = tuple(self._ask_missing(record)) if self.channel.is_open else ()
        self._set((*(posted for posted in self._outstanding if posted not in over), *asked))

    def _ask_missing(self, record: TaskRecord) -> Iterator[DetachedCall]:
        """Send the input requests in ``record`` that weren't sent yet, and yield the call object of each."""
        for key, text in record.questions.items():
            if not (self.has_asked(key) or self._questions.is_asked(record.id, key)):
                question = InputRequest(**decode_value(text))
                if self.channel.admits(question):
                    try:
                        yield self.channel.send_question(question, record.id, self, key)
                    except ConnectionLost:
                        self.channel.is_lost = True
                        return

    def _set(self, out: tuple[DetachedCall, ...]) -> None:
        had, self._outstanding = self._outstanding, out
        if out and not had:
            self._questions.add(self._task_id, self)
        elif had and not out:
            self._questions.remove(self._task_id, self)

    def withdraw_all(self, reason: str | BaseException) -> None:
        """Cancel all input requests that were sent on this channel and have no response yet. Idempotent."""
        for posted in self._outstanding:
            posted.abandon(reason)
        self._set(())

    def ask_again(self, call: DetachedCall) -> None:
        """Send an input request again, because the client's response was lost."""
        self._set(tuple(each for each in self._outstanding if each is not call))
        self._questions.changed(self._task_id)

    def receive_outcome(self, call: DetachedCall, result: Any, error: MCPError | None) -> None:
        """Handle the client's response to an input request. See `CallOwner`."""
        if isinstance(error, ConnectionLost) or (isinstance(error, PeerError) and error.code == TOO_BUSY):
            # The client is gone, closing or too busy at the moment, so send the input request again, to the next client
            # that waits for the task's result.
            self.channel.is_lost = True
            self.ask_again(call)
        else:
            is_answer = error is None and isinstance(result, dict)
            answer = encode_value(result) if is_answer else encode_refusal(error)
            self._questions.persist(self, call, self._task_id, answer)


class CoreClient(Asker):
    """Sends a background task's status changes, and its elicitation and sampling requests, to the client that created
    the task.

    ``channel`` carries both.

    Only the latest status is queued. Nothing waits for a client that is away or reads nothing, since clients must not
    rely on notifications (2025-11-25 tasks, Task Notifications).
    """

    __slots__ = ("_status",)

    def __init__(self, questions: CoreQuestions, task_id: str, channel: TaskClientChannel) -> None:
        super().__init__(questions, task_id, channel)
        self._status = "working"

    def notify(self, record: TaskRecord) -> None:
        """Notify the client of the status in ``record``, and send it the input requests that weren't sent yet.
        Synchronous."""
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
        """Send a request of the task's handler directly to the client. Unlike an input request, it isn't stored in the
        task record.

        Raises `NoBackChannel` if the client isn't connected.
        """
        if not self.channel.is_open:
            raise NoBackChannel("cannot send a request to the client of this task: the client is not connected")
        return self.channel.ask(method, params, self._task_id, on_progress)


_NO_ANSWER = "the answer to a question of a task must be an object"


def encode_refusal(error: MCPError | None) -> bytes:
    """Encode ``error``, which is stored in the task record in place of the client's response to an input request.

    ``error`` is `None` if the client's response wasn't an object.
    """
    if isinstance(error, PeerError):
        return encode_value([error.code, error.message, error.data])
    return encode_value([None, _NO_ANSWER if error is None else str(error), None])


def decode_answer(text: bytes) -> JSONObject | MCPError:
    """Decode a client's response that is stored in a task record.

    If an error is stored in its place, return the error as an exception.
    """
    kept: Any = decode_value(text)
    if isinstance(kept, dict):
        return kept  # pyright: ignore[reportUnknownVariableType]
    code, message, data = kept
    return ProtocolViolation(message) if code is None else PeerError(code, message, data)
