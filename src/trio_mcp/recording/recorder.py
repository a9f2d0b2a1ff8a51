"""Recorder: writes recordings of connections, one file for each, in a thread of its own, so that connections don't wait
for the disk.

A `RecordedTransport` wraps the transport of a connection, and records each message. `RecordedRequests` records what
happens to the requests of that connection. A connection passes its bytes unchanged; the thread decodes, masks and
writes them. Messages that arrive faster than the thread can write are dropped and counted. If the disk fails, the
recordings end with one line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from ..classes import define
from ..concurrency.contexts import ResumptionObserver
from ..runtime.outbox import Outbox
from ..runtime.transport import Frame, FramedTransport, Received, SendRecorder, UnreadableFrame
from .entries import VERSION, Header, RecordedEntry, Recording, Reference, WriteJob, head_of, nests_too_deep

if TYPE_CHECKING:
    from ..jsonrpc.messages import RequestId
    from ..protocol.meta import TraceContext
    from ..runtime.limits import Load
    from ..runtime.transport import CallSpan, HandlerSpan, Tracer, Tracing
    from ..state.requests import InboundRequest, OutboundRequest
    from .entries import EventName, ExchangeReference

logger = logging.getLogger("trio_mcp")

_MOST_WAITING: Final = 16 * 1024 * 1024
"""Maximum number of bytes of messages that wait until the recorder's thread writes them."""
_MOST_FILES: Final = 1000
_AT_ONCE: Final = 0.05
"""Seconds for which the end of a connection blocks until the last lines are written. A virtual clock doesn't wait for
threads, so blocking is the only way."""
_AT_MOST: Final = 2.0
"""Maximum seconds that the end of a connection waits until the last lines are written."""
NO_JSON: Final = "no JSON"
"""The reason in an entry without a message, because the received text wasn't JSON."""
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()


def new_header(role: str, network: str | None) -> Header:
    """Return the header of a recording that starts now."""
    return Header(
        recording=VERSION,
        id=secrets.token_hex(8),
        role=role,
        pid=os.getpid(),
        wall=time.time(),
        trio=trio.current_time(),
        network=network,
        software=_software(),
    )


@cache
def _software() -> str:
    return f"trio-mcp {version('trio-mcp')}"


class Recorder:
    """Records connections in JSON Lines files, with one line for each message and event.

    The first connection is recorded in ``path``, for example ``name.jsonl``, the second in ``name-2.jsonl``, and so on.
    Existing files are replaced. Only your user can read the files.

    Values whose key names a secret (``password``, ``token``, ``api_key``, ``requestState``, ...) and credentials are
    masked. All other arguments and results are recorded. If writing fails later, for example because the disk is full,
    an error is logged, all recordings end, and the connections continue.

    Args:
        path: The file of the first connection.
        max_bytes: Maximum bytes of all files together.
        max_line_bytes: Maximum bytes of one line. Of a longer message only the method and the id are recorded.

    Raises:
        FileNotFoundError: The folder of ``path`` doesn't exist.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_bytes: int = 100_000_000, max_line_bytes: int = 1_000_000
    ) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise FileNotFoundError(
                f"cannot record to {str(self._path)!r}: the folder {str(self._path.parent)!r} doesn't exist"
            )
        self._remaining_bytes = max_bytes
        self._max_line_bytes = max_line_bytes
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue[WriteJob]()
        self._waiting = 0
        self._opened = 0
        self._thread: threading.Thread | None = None
        self._is_slow = False
        self._is_over = False

    def _recorded(self, transport: FramedTransport, role: str) -> FramedTransport:
        """Return a transport that wraps ``transport`` and records all its messages. ``role`` is the role of this
        process: ``client`` or ``server``."""
        recording = self._start(role, transport.network)
        if recording is None:
            return transport
        if transport.child is not None:
            pid, started_at = transport.child
            recording.event("process.started", at=started_at, pid=pid)
        return RecordedTransport(transport, recording)

    def _start(self, role: str, network: str | None = None) -> Recording | None:
        """Start the recording of a connection. Return `None` if the maximum number of files is reached."""
        with self._lock:
            if self._is_over or self._opened == _MOST_FILES:
                return None
            self._opened += 1
            number = self._opened
        path = self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")
        return Recording(self._put, self._written, path, new_header(role, network))

    def _put(self, job: WriteJob) -> bool:
        """Pass ``job`` to the recorder's thread without waiting. If too many bytes are waiting, drop the job and return
        false."""
        with self._lock:
            if job.written is None and (self._is_over or self._waiting + job.size > _MOST_WAITING):
                return False
            self._jobs.put(job)
            self._waiting += job.size
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="trio_mcp recording", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system can't start another thread, or the interpreter is exiting
                    self._jobs = queue.SimpleQueue[WriteJob]()
                    self._waiting, self._is_over = 0, True
                    return False
                self._thread = thread
        return True

    async def _written(self, recording: Recording) -> None:
        """Wait up to two seconds until ``recording`` is completely written to its file."""
        done, told = threading.Event(), trio.Event()
        token = trio.lowlevel.current_trio_token()

        def tell() -> None:
            done.set()
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(told.set)

        if not self._put(WriteJob(recording, 0, written=tell)) or (not self._is_slow and done.wait(_AT_ONCE)):
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _AT_MOST) as scope:
            await told.wait()
        self._is_slow = scope.cancelled_caught

    # Called in the thread

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            with self._lock:
                self._waiting -= job.size
            try:
                self._write(job)
            # An error of the recording, usually of the disk, must not end the recorded connection.
            except Exception as error:
                self._fail(job, error)
            if job.written is not None:
                job.written()

    def _write(self, job: WriteJob) -> None:
        recording = job.recording
        if job.written is not None or self._is_over:
            recording.close()
        if recording.is_over:
            return
        file = recording.open()
        line = self._line(job)
        if len(line) > self._remaining_bytes:
            full = RecordedEntry(t=job.t, event="recording.full")
            file.write(_encoder.encode(full) + b"\n")
            recording.close()
            logger.warning("the recording %s is full, and ends", recording.path)
            return
        self._remaining_bytes -= len(line)
        file.write(line)
        if self._jobs.empty():
            file.flush()

    def _line(self, job: WriteJob) -> bytes:
        entry = job.entry or entry_of(job, self._max_line_bytes)
        line = _encoder.encode(entry) + b"\n"
        if len(line) > self._max_line_bytes and not entry.cut and entry.dir is not None:
            entry = entry_of(job, 0)
            line = _encoder.encode(entry) + b"\n"
        if len(line) > self._max_line_bytes and entry.cut:
            line = _encoder.encode(msgspec.structs.replace(entry, message=None)) + b"\n"
        return line

    def _fail(self, job: WriteJob, error: Exception) -> None:
        with self._lock:
            self._is_over = True
        logger.warning("the recording %s ends, and no further connection is recorded: %s", job.recording.path, error)
        with contextlib.suppress(OSError):
            job.recording.close()


def entry_of(job: WriteJob, limit: int) -> RecordedEntry:
    """Return the entry for a recorded message, with its secrets masked.

    If the message has more than ``limit`` bytes, its parameters and result are removed before the search for secrets.
    """
    assert job.data is not None, "a message"
    message: Any = None
    reason: str | None = None
    cut = len(job.data) > limit
    try:
        decoded = head_of(job.data) if cut else _decoder.decode(job.data)
        if nests_too_deep(job.data, decoded):
            reason = "nested too deep"
        else:
            message = job.recording.masking.masked(decoded)
    except RecursionError:
        reason = "nested too deep"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        reason = NO_JSON  # don't record the text, which may contain secrets
    return RecordedEntry(
        t=job.t, dir=job.dir, bytes=len(job.data), message=message, cut=cut, reason=reason, post=job.post
    )


def recorder_of(record: Recorder | str | os.PathLike[str] | None) -> Recorder | None:
    """Return the recorder for the value of a ``record`` option: `None`, a path or a `Recorder`."""
    return record if record is None or isinstance(record, Recorder) else Recorder(record)


_working_for: Final[ContextVar[Reference | None]] = ContextVar("trio_mcp.recording.working_for", default=None)
"""The request whose handler runs in the current task, if its connection is recorded."""


class RecordedTransport(FramedTransport):
    """A transport that wraps ``transport``, and records each message in ``recording``.

    Messages of this side are recorded when they are sent, and those of the peer when they are received.
    """

    def __init__(self, transport: FramedTransport, recording: Recording) -> None:
        self._transport = transport
        self._recording = recording
        self._rest = 0
        """The rest of a message that `send_nowait` has begun to send. `send` sends these bytes first."""
        self.network = transport.network
        self.child = transport.child
        self.names_calls = transport.names_calls

    async def receive(self) -> Received:
        """Receive a message from the wrapped transport, and record it. See `FramedTransport.receive`."""
        try:
            received = await self._transport.receive()
        except UnreadableFrame as error:
            self._recording.event("unreadable", reason=error.reason)
            raise
        if isinstance(received, Frame):
            self._recording.frame("in", received.data)
        elif isinstance(received, bytes | bytearray):
            self._recording.frame("in", received)
        return received

    async def send(self, messages: bytes | bytearray) -> None:
        """Record messages, and send them over the wrapped transport. See `FramedTransport.send`."""
        begin, self._rest = self._rest, 0
        for line in bytes(messages[begin:]).split(b"\n"):
            if line:
                self._recording.frame("out", line)
        await self._transport.send(messages)

    def send_nowait(self, message: bytes) -> int:
        """Record a message, and send it over the wrapped transport without waiting. See
        `FramedTransport.send_nowait`."""
        at = trio.current_time()  # take the time before sending, because the peer may receive the message at once
        count = self._transport.send_nowait(message)
        if count:
            self._recording.frame("out", message[:-1], at)
            self._rest = len(message) - count
        return count

    def make_outbox(self, high_water: int, recorded: SendRecorder | None = None) -> Outbox:
        """Return an outbox (a queue of outgoing messages) that records each message, and sends it over the wrapped
        transport. See `FramedTransport.make_outbox`."""
        return self._transport.make_outbox(high_water, recorded or SendRecorder(self.send_nowait, self._record))

    def _record(self, message: bytes) -> None:
        self._recording.frame("out", message)

    def observed_by(self, tracing: Tracing | None) -> Tracing | None:
        """Return a `Tracing` that records the events of requests, and also passes them on to ``tracing``. See
        `FramedTransport.observed_by`."""
        place = self._recording, 0
        return RecordedRequests(lambda _: place, self._transport.observed_by(tracing))

    async def aclose(self) -> None:
        """Close the wrapped transport, and end the recording."""
        try:
            await self._transport.aclose()
        finally:
            await self._recording.aclose()


@define(eq=False)
class RecordedRequests:
    """Records the events of the requests on one connection, and passes them on to ``tracing``.

    ``find`` returns the recording of a request. See `Tracing` and `Tracer`.
    """

    _find: Callable[[InboundRequest | OutboundRequest], ExchangeReference | None]
    _tracing: Tracing | None
    _tracer: Tracer | None = None

    def _watch_load(self, load: Load) -> None:
        """Pass the server's load on to the `Tracing` that this object wraps. See `Tracing._watch_load`."""
        if self._tracing is not None:
            self._tracing._watch_load(load)

    def _tracer_of(self, network: str | None) -> Tracer:
        """Return the tracer for the connection, which is this object. See `Tracing._tracer_of`."""
        self._tracer = None if self._tracing is None else self._tracing._tracer_of(network)
        return self

    def close(self, role: str, revision: str | None) -> None:
        """Notify the wrapped `Tracer` that the connection has ended. See `Tracer.close`."""
        if self._tracer is not None:
            self._tracer.close(role, revision)

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Return a span that records the events of a request that this side sends. See `Tracer.calling`."""
        span = None if self._tracer is None else self._tracer.calling(request, params, present)
        place = self._find(request)
        if place is None:
            return span
        place[0].event("call.began", request.id, work_for=_working_for.get(), post=place[1])
        return _RecordedCall(place, request.id, params if span is None else span.params, span)

    def handling(self, request: InboundRequest, queued: float = 0.0) -> HandlerSpan | None:
        """Return a span that records the handling of a request that the peer has sent. See `Tracer.handling`."""
        span = None if self._tracer is None else self._tracer.handling(request, queued)
        place = self._find(request)
        if place is None:
            return span
        recording, post = place
        recording.event("handler.began", request.id, post=post)
        _working_for.set(Reference(recording.header.id, request.id, post))
        return _RecordedHandler(place, request.id, span)


@define(eq=False)
class _RecordedCall:
    """Records the events of a request that this side has sent. See `CallSpan`."""

    _place: ExchangeReference
    _id: RequestId
    params: dict[str, Any] | None
    _span: CallSpan | None

    def end(self, result: Any, error: BaseException | None) -> None:
        if isinstance(error, trio.Cancelled):
            recording, post = self._place
            reason = "deadline" if error.source == "deadline" else None
            recording.event("call.left", self._id, reason=reason, post=post)
        if self._span is not None:
            self._span.end(result, error)


@define(eq=False)
class _RecordedHandler:
    """Records the events of a request that the peer has sent. See `HandlerSpan`."""

    _place: ExchangeReference
    _id: RequestId
    _span: HandlerSpan | None

    def _record(self, name: EventName, **more: Any) -> None:
        recording, post = self._place
        recording.event(name, self._id, post=post, **more)

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        inner = answer if self._span is None else self._span.follow(answer, scope)
        delivered, returned = (partial(self._record, name) for name in ("cancel.delivered", "handler.returned"))
        return ResumptionObserver(inner, scope, delivered, returned)

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        if cause is not None:
            self._record("cancel.received", at=at, cause=cause)
        self._record("cleanup.done")
        if self._span is not None:
            self._span.end(result, request, cause, at)
