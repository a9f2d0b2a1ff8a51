"""Replaying sends the messages of a recorded client to a server again, in order, and tells of the differences.

Before each message the replay waits for the answers and questions that had come before it in the recording; a cancel is
sent after as long as in the recording. Ids and times are no differences, nor are values that servers make anew for each
client, such as cursors and ids of tasks: the values of the live server are sent in their place. Masked values are
replaced in the same way, as far as they came from the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import trio

from ..classes import define, frozen
from ..jsonrpc.codec import decode
from ..jsonrpc.messages import Batch, ErrorResponse, Request, RequestId, Response, Unreadable
from ..runtime.transport import ConnectionLost, Frame, Transport
from .entries import Recorded, plain_id
from .masking import MASK, Masking

_MADE_ANEW: Final = frozenset(("taskId", "nextCursor", "cursor", "requestState", "subscriptionId", "elicitationId"))
_TIMES: Final = frozenset(("createdAt", "lastUpdatedAt", "pollInterval", "ttlMs", "progressToken", "remainingMs"))
_MOST_DIFFERENCES: Final = 1000


@frozen
class Difference:
    """Something that the server does otherwise than in the recording."""

    where: str
    """The request and the place in its answer, ``tools/call echo (id 3): result.content[0].text`` for example."""
    recorded: str
    live: str

    def __str__(self) -> str:
        return f"{self.where}: {self.recorded} was recorded, and now there is {self.live}"


async def replay(recorded: Recorded, transport: Transport, *, patience: float = 10.0) -> list[Difference]:
    """Play the client of ``recorded`` against the server at the other end of ``transport``, and return the differences.
    A message of the server may come ``patience`` seconds late. The transport is closed in the end.

    Raises `OSError` and `BadRecording`.
    """
    player = _Player(transport, patience)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(player.read)
        try:
            await player.play(recorded)
        finally:
            nursery.cancel_scope.cancel(reason="the recording has been played")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + patience):
                await transport.aclose()
    return player.differences


@define(eq=False)
class _Asked:
    """A question of the live server."""

    id: RequestId
    params: Any
    is_met: bool = False


class _Player:
    def __init__(self, transport: Transport, patience: float) -> None:
        self._transport = transport
        self._patience = patience
        self._news = trio.lowlevel.ParkingLot()
        self._is_over = False
        self._replies: dict[RequestId, dict[str, Any]] = {}
        self._questions: dict[str, list[_Asked]] = {}
        self._names: dict[RequestId, str] = {}
        """Words for each request of the recording."""
        self._expected: set[RequestId] = set()
        self._left: set[RequestId] = set()
        self._question_ids: dict[RequestId, RequestId] = {}
        """The live id of each recorded question."""
        self._values: dict[str, Any] = {}
        """Value of the live server in the place of each recorded one."""
        self._masking = Masking()
        self.differences: list[Difference] = []

    def _differs(self, where: str, recorded: str, live: str) -> None:
        if len(self.differences) < _MOST_DIFFERENCES:
            self.differences.append(Difference(where, recorded[:500], live[:500]))

    # The live server

    async def read(self) -> None:
        try:
            while True:
                received = await self._transport.receive()
                message = received.message if isinstance(received, Frame) else None
                if isinstance(received, bytes | bytearray):
                    message = decode(received)
                for each in message.members if isinstance(message, Batch) else (message,):
                    self._take(each)
                self._news.unpark_all()
        except (trio.EndOfChannel, ConnectionLost):
            self._is_over = True
            self._news.unpark_all()

    def _take(self, message: object) -> None:
        match message:
            case Response():
                self._replies[message.id] = {"result": message.result}
            case ErrorResponse(id=int() | str() as reply_id):
                error = {"code": message.code, "message": message.message}
                self._replies[reply_id] = {"error": error if message.data is None else {**error, "data": message.data}}
            case Request():
                self._questions.setdefault(message.method, []).append(_Asked(message.id, message.params))
            case Unreadable():
                self._differs("a line of the server", "a message", message.reason)
            case _:
                pass

    async def _until(self, ready: Callable[[], object]) -> bool:
        """Wait until ``ready()``. Return false when the server does not come to that."""
        with trio.move_on_after(self._patience):
            while not ready():
                if self._is_over:
                    return False
                await self._news.park()
            return True
        return False

    # The recording

    async def play(self, recorded: Recorded) -> None:
        ours = "in" if recorded.header.role == "server" else "out"
        last = -math.inf
        for entry in recorded:
            for message in entry.messages:
                if entry.dir == ours:
                    gap = max(0.0, (entry.t - last) / 1e6)
                    await self._send(message, gap, is_cut=entry.cut)
                else:
                    await self._expect(message, is_cut=entry.cut)
            if entry.dir is not None:
                last = entry.t
        for question in [each for asked in self._questions.values() for each in asked if not each.is_met]:
            self._differs("a question of the server", "none", repr(question.params))
        for reply_id in self._replies.keys() - self._expected:
            name = self._names.get(reply_id, f"id {reply_id!r}")
            left = "no answer, since it was cancelled" if reply_id in self._left else "no answer"
            self._differs(name, left, _text(self._replies[reply_id]))

    async def _send(self, message: dict[str, Any], gap: float, *, is_cut: bool) -> None:
        message = self._with_live_values(message)
        method, message_id = message.get("method"), plain_id(message.get("id"))
        if is_cut:
            self._differs(str(method), "a message too long for the recording", "nothing: it was not sent")
            return
        if method is None and message_id is not None:
            message["id"] = self._question_ids.get(message_id, message_id)
        elif message_id is not None:
            params: Any = message.get("params")
            name = cast("dict[str, Any]", params).get("name", "") if isinstance(params, dict) else ""
            self._names[message_id] = f"{method} {name} (id {message_id!r})".replace("  ", " ")
        elif method == "notifications/cancelled":
            await trio.sleep(min(gap, self._patience))
            self._left.add(message.get("params", {}).get("requestId"))
        try:
            with trio.fail_after(self._patience):
                await self._transport.send(msgspec.json.encode(message) + b"\n")
        except (ConnectionLost, trio.TooSlowError) as error:
            self._differs(str(method), "a server that reads", str(error) or "a server that does not")

    def _with_live_values(self, data: Any) -> Any:
        if isinstance(data, dict):
            members = cast("dict[str, Any]", data)
            return {name: self._with_live_values(value) for name, value in members.items()}
        if isinstance(data, list):
            return [self._with_live_values(each) for each in cast("list[Any]", data)]
        return self._values.get(data, data) if isinstance(data, str) else data

    async def _expect(self, message: dict[str, Any], *, is_cut: bool) -> None:
        method, message_id = message.get("method"), plain_id(message.get("id"))
        if isinstance(method, str) and message_id is not None:
            await self._expect_question(method, message_id, message.get("params"), is_cut=is_cut)
        elif isinstance(method, str):
            return  # how many notifications come, and when, is a matter of time
        elif message_id is not None:
            name = self._names.get(message_id, f"id {message_id!r}")
            self._expected.add(message_id)
            if not await self._until(lambda: message_id in self._replies):
                self._differs(name, "an answer", "none")
            elif not is_cut:
                kept = {part: message[part] for part in ("result", "error") if part in message}
                self._compare(name, kept, self._replies[message_id])

    async def _expect_question(self, method: str, recorded_id: RequestId, params: Any, *, is_cut: bool) -> None:
        def next_one() -> _Asked | None:
            return next((each for each in self._questions.get(method, ()) if not each.is_met), None)

        if not await self._until(next_one):
            self._differs(f"the question {method}", _text(params), "none")
            return
        question = next_one()
        assert question is not None, "it was there"
        question.is_met = True
        self._question_ids[recorded_id] = question.id
        if not is_cut:
            self._compare(f"the question {method}", {"params": params}, {"params": question.params})

    # Comparing

    def _compare(self, name: str, recorded: Any, live: Any) -> None:
        self._walk(name + ": ", "", recorded, live)

    def _walk(self, name: str, path: str, recorded: Any, live: Any) -> None:
        key = path.rpartition(".")[2]
        if isinstance(recorded, str) and (recorded.startswith(MASK) or key in _MADE_ANEW) and isinstance(live, str):
            self._values[recorded] = live
        elif key in _TIMES or key.rpartition("/")[2] in _TIMES:
            return
        elif isinstance(recorded, dict) and isinstance(live, dict):
            there, here = cast("dict[str, Any]", recorded), cast("dict[str, Any]", live)
            for part in {**there, **here}:
                inner = f"{path}.{part}" if path else part
                if part not in here:
                    self._differs(name + inner, _text(there[part]), "nothing")
                elif part not in there:
                    self._differs(name + inner, "nothing", self._shown(here[part]))
                else:
                    self._walk(name, inner, there[part], here[part])
        elif isinstance(recorded, list) and isinstance(live, list):
            olds, news = cast("list[Any]", recorded), cast("list[Any]", live)
            if len(olds) != len(news):
                self._differs(name + path, f"{len(olds)} items", f"{len(news)} items")
            for number, (old, new) in enumerate(zip(olds, news, strict=False)):
                self._walk(name, f"{path}[{number}]", old, new)
        elif recorded != live and not (isinstance(recorded, str) and MASK in recorded):
            self._differs(name + path, _text(recorded), self._shown(live))

    def _shown(self, live: Any) -> str:
        return _text(self._masking.masked(live))


def _text(data: Any) -> str:
    return msgspec.json.encode(data).decode()
