"""Recorder: writes recordings of connections, one file for each, in a thread of its own, so that connections don't wait
for the disk.

A connection passes its bytes unchanged; the thread decodes, masks and writes them. Messages that arrive faster than the
thread can write are dropped and counted. If the disk fails, the recordings end with one line in the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from .entries import VERSION, Header, RecordedEntry, Recording, WriteJob, head_of, nests_too_deep

if TYPE_CHECKING:
    from ..runtime.transport import FramedTransport

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
        from .recorded_transport import RecordedTransport

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
