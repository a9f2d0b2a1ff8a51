"""Carrier carries retries to the replicas in which their handlers are parked, and relays the lines of the handlers to
the clients.

The taker of a retry has checked everything, as for any retry, and runs the retry as an ordinary request, which takes a
slot, and whose cancel scope is the abort signal. The owner runs the handler. Each tells the other the end; and since
letters get lost with their writers, each asks from time to time after the calls that are open.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import trio

from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import decode, pack_value
from ..jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError
from ..jsonrpc.messages import ErrorResponse, Response
from ..protocol.errors import REPLICA_LOST
from ..protocol.revisions import CORE, Vocabulary
from ..runtime.cancellation import REMAINING_MS, CancelCause
from ..stores.decoding import decode_stored
from ..stores.letters import Letter, LetterRefused, Letters, ReplicaDead
from ..stores.task_store import UnreadableRecord
from .carried import PATIENCE, WINDOW, RetriesHere, replica_lost
from .retry_letters import (
    CANCEL,
    CHECK,
    LINES,
    RETRY,
    AuthFacts,
    CancelLetter,
    CheckLetter,
    CheckReceipt,
    LetterSeal,
    LinesLetter,
    RetryLetter,
)

if TYPE_CHECKING:
    from ..runtime.requests.host import RequestHost
    from ..runtime.requests.scope import RequestScope
    from .request_state import RetryElsewhere, StateCipher

logger = logging.getLogger("trio_mcp")

_CHECK_EVERY: Final = 1.0
_FIRST_PATIENCE: Final = 1.0
"""Seconds for which the storage may fail before a retry was sent: its client waits, and may come again."""
_CANCEL_TIME: Final = 2.0
"""Seconds that a cancel may take on its way. One that is lost is noticed by the next check."""
_LAST_WORDS: Final = 1.0
"""Seconds in which the ends of retries that run here go out when the server ends."""
_UNREACHABLE: Final = "Too busy: the process that runs this call cannot be reached now; try again later"


_receipts: Final = msgspec.msgpack.Decoder(CheckReceipt)


class _Call:
    """A call that was carried to ``owner``."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_taken = False
        """True once the owner has the retry."""
        self.is_over = False
        """True once nothing comes from the owner any more."""
        self.waiting: dict[int, tuple[Letter, LinesLetter]] = {}
        """Batches without a receipt, by their places, since messages may arrive out of order."""
        self.place = 0
        """Number of the next batch."""
        self._failure: CodedError | None = None
        self._sleeper = Sleeper()

    def come(self, letter: Letter, batch: LinesLetter) -> None:
        """Take a batch that has come."""
        if batch.place < self.place:  # a repetition of a batch that was already received
            letter.take()
        elif batch.place >= self.place + WINDOW:
            letter.refuse("there is no room for so many")
        else:
            self.waiting[batch.place] = letter, batch
            self._sleeper.wake()

    def fail(self, error: CodedError) -> None:
        """Have `next` raise ``error``, since no batch comes any more."""
        self.is_over, self._failure = True, error
        self._sleeper.wake()

    async def next(self) -> LinesLetter:
        """Wait for the next batch. It stays in ``waiting`` until `took` is called."""
        while self.place not in self.waiting:
            if self._failure is not None:
                raise self._failure
            await self._sleeper.sleep()
        return self.waiting[self.place][1]

    def took(self) -> None:
        """Let the owner send the next batch."""
        letter, _ = self.waiting.pop(self.place)
        self.place += 1
        letter.take()

    def refuse_all(self) -> None:
        """Let the owner know that nobody waits for more."""
        for letter, _ in self.waiting.values():
            letter.refuse("the client has left")
        self.waiting.clear()


class Carrier:
    """The retries that this replica, ``host``, carries to others, and, in `here`, the ones that others carry here."""

    def __init__(self, host: RequestHost, letters: Letters, cipher: StateCipher, vocabulary: Vocabulary = CORE) -> None:
        self._host = host
        self._letters = letters
        self._seal = LetterSeal(cipher, letters.replica.id)
        self._checker = Sleeper()
        self.here = RetriesHere(host, letters, self._seal, self._checker.wake, vocabulary)
        self._last = 0
        self._calls: dict[int, _Call] = {}
        """The calls that were carried and have not ended, by their numbers."""
        self._patience = trio.CancelScope()
        """Scope of the time that calls and parked handlers have when the server ends."""

    @property
    def is_idle(self) -> bool:
        """True while no call is carried, in either direction."""
        return not (self._calls or self.here.open)

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled."""
        async with trio.open_nursery() as nursery:
            self._letters.read(LINES, self._read_lines)
            self._letters.read(CHECK, self._read_check)
            nursery.start_soon(self._check)
            await self.here.run(task_status=task_status)

    def shut_down(self, *, hurry: bool = False) -> None:
        """Let retries of others, and parked handlers, go on for `Limits.drain_timeout`: clients may bring the answers
        to any replica. ``hurry``: less than a second is left for everything."""
        end = trio.current_time() + (0.0 if hurry else self._host.limits.drain_timeout)
        self._patience.deadline = min(self._patience.deadline, end)

    async def drain(self) -> None:
        """Shut down, and wait until nothing is parked here, and no retry of others runs here."""
        self.shut_down()
        with self._patience:
            while self._host.parking or self.here.open:
                await self._host.parking.emptied()
                await self.here.ended()
        self.here.cancel_all("the server is shutting down")
        for scope in self._host.parking:
            scope.abort(CancelCause.SHUTDOWN, "the server is shutting down")
        with trio.move_on_after(_LAST_WORDS):
            await self.here.ended()

    # Retries that come here, and belong elsewhere

    async def carry(self, scope: RequestScope, retry: RetryElsewhere) -> Any:
        """Have the owner of ``retry``, the request of ``scope``, go on with its handler, and return the result, plain
        data. The lines of the handler go to the client. The end of this call, for any reason, ends the handler.

        Raises `CodedError`: the error of the handler; -31003 where its replica has ended; -31000 where the storage
        fails.
        """
        self._last += 1
        self._host.load.carried += 1
        number, call = self._last, _Call(retry.replica)
        self._calls[number] = call
        self._checker.wake()
        try:
            await self._send(scope, retry, number, call)
            return await self._relay(scope, call)
        finally:
            del self._calls[number]
            call.refuse_all()
            if not call.is_over:
                await self._cancel(scope, number, call.owner)

    async def _send(self, scope: RequestScope, retry: RetryElsewhere, number: int, call: _Call) -> None:
        letter = self._seal.seal(RETRY, call.owner, _letter_of(scope, retry, number))
        try:
            await self._letters.send(call.owner, RETRY, letter, patience=_FIRST_PATIENCE)
        except ReplicaDead:
            call.is_over = True
            raise replica_lost() from None
        except LetterRefused as error:
            call.is_over = True
            words = f"the process that ran this call does not go on: {error}; call again"
            raise CodedError(REPLICA_LOST, words) from None
        except OSError as error:  # the storage logs its outages, and any client can come here
            logger.debug("a retry could not be carried to the replica %s: %s", call.owner, error)
            raise scope.exchange.unavailable(_UNREACHABLE) from None
        call.is_taken = True

    async def _relay(self, scope: RequestScope, call: _Call) -> Any:
        lines = bytearray()
        while True:
            batch = await call.next()
            before = len(lines)  # bytes of a partly received line
            lines += batch.lines
            # Of the last batch, the last line is the reply; of others, it may have come in part.
            end = lines.rfind(b"\n", before, max(len(lines) - 1, 0) if batch.is_last else len(lines)) + 1
            if end:
                scope.put(bytes(lines[:end]))
                del lines[:end]
            if batch.is_last:
                call.is_over = True
                call.took()
                return _result_in(lines, scope)
            await scope.outbox.room()
            call.took()

    async def _cancel(self, scope: RequestScope, number: int, owner: str) -> None:
        cancellation = scope.cancellation
        is_late = cancellation is not None and cancellation.cause is CancelCause.DEADLINE
        reason = "the request has ended" if cancellation is None else cancellation.words
        letter = self._seal.seal(CANCEL, owner, CancelLetter(number, is_late, reason))
        try:
            with trio.move_on_after(_CANCEL_TIME, shield=True):
                await self._letters.send(owner, CANCEL, letter, patience=0)
        except (ReplicaDead, LetterRefused, OSError) as error:  # it ends there all the same, if not as soon
            logger.debug("the cancel of a carried retry was not brought to the replica %s: %s", owner, error)

    # Letters

    def _read_lines(self, letter: Letter) -> None:
        batch = self._seal.open(LINES, letter, LinesLetter)
        if batch is None:
            return
        call = self._calls.get(batch.number)
        if call is None or call.owner != letter.sender:
            letter.refuse("the client has left")
        else:
            call.come(letter, batch)

    def _read_check(self, letter: Letter) -> None:
        check = self._seal.open(CHECK, letter, CheckLetter)
        if check is not None:
            carried = self.here.unknown(letter.sender, check.carried)
            running = [number for number in check.running if number not in self._calls]
            letter.take(msgspec.msgpack.encode(CheckReceipt(carried, running)))

    async def _check(self) -> None:
        """Ask after open calls, from time to time."""
        while True:
            while self.is_idle:
                await self._checker.sleep()
            await trio.sleep(_CHECK_EVERY)
            async with trio.open_nursery() as nursery:
                for replica in {call.owner for call in self._calls.values()} | {taker for taker, _ in self.here.open}:
                    nursery.start_soon(self._check_with, replica)

    async def _check_with(self, replica: str) -> None:
        carried = [number for number, call in self._calls.items() if call.owner == replica and call.is_taken]
        running = [number for taker, number in self.here.open if taker == replica]
        check, error, reason = CheckLetter(carried, running), replica_lost(), "the client has left"
        try:
            content = self._seal.seal(CHECK, replica, check)
            receipt = await self._letters.send(replica, CHECK, content, patience=PATIENCE)
            unknown = decode_stored("a receipt", _receipts.decode, receipt)
        except ReplicaDead:
            unknown, reason = CheckReceipt(carried, running), "the replica that took the request has ended"
        except (LetterRefused, UnreadableRecord) as refused:
            unknown, reason = CheckReceipt(carried, running), str(refused)
        except OSError as failed:
            logger.warning(
                "calls between the replica %s and this one end, since it cannot be reached: %s", replica, failed
            )
            unknown, reason = CheckReceipt(carried, running), "the replica that took the request cannot be reached"
            error = CodedError(TOO_BUSY, _UNREACHABLE)
        for number in unknown.carried:
            if number in self._calls:
                self._calls[number].fail(error)
        for number in unknown.running:
            exchange = self.here.open.get((replica, number))
            if exchange is not None:
                exchange.cancel(CancelCause.DISCONNECT, reason)


def _letter_of(scope: RequestScope, retry: RetryElsewhere, number: int) -> RetryLetter:
    request, peer = scope.request, scope.exchange.peer
    params = request.params
    if scope.due < math.inf:
        left = scope.due - scope.runner.limits.deadline_grace - trio.current_time()
        params = {**params, "_meta": {**request.meta, REMAINING_MS: max(0, math.ceil(left * 1000))}}
    return RetryLetter(
        number,
        retry.handle,
        request.id,
        request.method.name,
        pack_value(params),
        request.size,
        peer.principal,
        None if peer.auth is None else AuthFacts.of(peer.auth),
        None if peer.headers is None else dict(peer.headers),
    )


def _result_in(line: bytearray, scope: RequestScope) -> Any:
    """Return the result in ``line``, the reply to the request of ``scope``. Raises `CodedError` for an error."""
    if not line:
        raise replica_lost()
    match decode(line):
        case Response(_, result) if type(result) is dict:  # nothing else is a result in MCP
            found = cast("dict[str, Any]", result)
            scope.request.failed = found.get("isError") is True
            return found
        case ErrorResponse(_, code, message, data):
            raise CodedError(code, message, data)
        case _:
            raise CodedError(INTERNAL_ERROR, "Internal error: the replica that ran this call gave no reply")
