"""Replay: plays one side of a recording against a live server or client, and reports the differences.

Messages are sent in their recorded order. Before each message, the replay waits for the messages of the other side that
preceded it in the recording. A cancel is sent after the same delay as in the recording. Replies, requests and
notifications are compared, see `Comparison`. Progress may arrive in fewer or more steps, which depends on timing; only
the last step before an answer is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
import trio

from ..classes import define, frozen
from ..concurrency.nurseries import open_service_nursery
from ..jsonrpc.codec import decode, frame_error, frame_notification, frame_result
from ..jsonrpc.messages import Batch, ErrorResponse, Notification, Request, RequestId, Response, Unreadable
from ..protocol.fields import as_object
from ..protocol.meta import PROGRESS_TOKEN, PROTOCOL_VERSION, SUBSCRIPTION_ID
from ..runtime.transport import ConnectionLost, FramedTransport, ReplyLost, UnreadableFrame
from .comparing import Comparison, Difference, text_of
from .entries import Recorded, RecordedEntry, plain_id


@frozen
class ConnectionOpening:
    """The kind of the client's first request in a recording: ``initialize`` (legacy protocol revisions) or another
    request (modern revisions)."""

    legacy: str | None = None
    """The revision offered by ``initialize``; `None` without a handshake."""
    modern: str | None = None
    """The modern revision of the first request; `None` if the connection began with a handshake."""


def opening_of(recorded: Recorded) -> ConnectionOpening:
    """Return how the client in ``recorded`` opened its connection, judging by the first request that got a result.

    Raises `OSError` and `BadRecording`.
    """
    begun: dict[Any, ConnectionOpening] = {}
    for entry in recorded:
        for message in entry.messages:
            key = message.get("id") if isinstance(message.get("id"), int | str) else None
            if "method" in message and key is not None:
                begun.setdefault(key, _opened_by(message))
            elif "result" in message and key in begun:
                return begun[key]
            if len(begun) > _MOST:
                return ConnectionOpening()
    return ConnectionOpening()


_MOST = 100
"""Number of requests that are searched for the first request that got a result."""


def _opened_by(message: dict[str, Any]) -> ConnectionOpening:
    params: Any = message.get("params")
    if message.get("method") == "initialize" and isinstance(params, dict):
        revision = cast("dict[str, Any]", params).get("protocolVersion")
        return ConnectionOpening(legacy=revision if isinstance(revision, str) else None)
    revision = meta_of(params).get(PROTOCOL_VERSION)
    return ConnectionOpening(modern=revision if isinstance(revision, str) else None)


def meta_of(params: Any) -> dict[str, Any]:
    """Return the ``_meta`` of request parameters, or an empty object if there is none."""
    found: Any = as_object(params).get("_meta")
    return as_object(found)


@define(eq=False)
class ReceivedMessage:
    """A request or a notification that the live client or server has sent during the replay."""

    method: str
    params: Any
    id: RequestId | None = None

    @property
    def value(self) -> float:
        """The progress value of a progress notification."""
        found = self.member("progress")
        return found if isinstance(found, int | float) else -math.inf

    def member(self, name: str) -> Any:
        """Return the member ``name`` of the message's parameters, or `None` if it is missing."""
        params: Any = self.params
        return as_object(params).get(name)


@define(eq=False)
class SentRequest:
    """A recorded request that the replay has sent again."""

    id: RequestId
    name: str
    token: RequestId | None = None
    last: Any = None
    """The parameters of the last recorded progress notification."""
    is_expected: bool = False
    """True once the replay has reached the recorded reply."""


_CANCELLED: Final = "notifications/cancelled"
_PROGRESS: Final = "notifications/progress"
_HIGH_WATER: Final = 64 * 1024
_FRESH: Final = 1_000_000_000
"""First id for requests whose recorded id was already used by another client of the same recording."""

Key: TypeAlias = tuple[int, RequestId | None]
"""Identifies a request of the recording by exchange and id. See `RecordedEntry.post`."""


async def replay(
    recorded: Recorded,
    transport: FramedTransport,
    *,
    side: Literal["client", "server"] = "client",
    patience: float = 10.0,
) -> list[Difference]:
    """Send the messages of one ``side`` of ``recorded`` again over ``transport``. Return how the other side's messages
    differ from the recorded ones.

    A message can be up to ``patience`` seconds late. The transport is closed at the end.

    Raises `OSError` and `BadRecording`.
    """
    player = _Player(transport, side, patience)
    async with open_service_nursery("the recording was replayed") as nursery:
        nursery.start_soon(player.read)
        nursery.start_soon(player.write)
        try:
            await player.play(recorded)
        finally:
            nursery.cancel("the recording was replayed")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + patience):
                await transport.aclose()
    return player.comparing.differences


class _Player:
    def __init__(self, transport: FramedTransport, side: str, patience: float) -> None:
        self._transport = transport
        self._outbox = transport.make_outbox(_HIGH_WATER)
        self._side = side
        self._other, self._question = ("client", "request") if side == "server" else ("server", "question")
        self._patience = patience
        self._news = trio.lowlevel.ParkingLot()
        self._is_over = False
        self._replies: dict[RequestId, dict[str, Any]] = {}
        self._received: list[ReceivedMessage] = []
        """Messages of the live client or server that haven't been matched with a recorded message yet."""
        self._sent: dict[Key, SentRequest] = {}
        self._tokens: dict[Key, SentRequest] = {}
        """The requests that have a progress token, keyed by the token in the recording."""
        self._used = set[RequestId]()
        """The ids that the replay uses for the requests it sends."""
        self._left = set[RequestId]()
        """The ids of the requests that the replay has cancelled."""
        self._unreadable: list[str] = []
        """For each invalid input of the live client or server, the reason why it isn't a message. A server may print
        text, for example."""
        self._unreadable_before = 0
        """Number of invalid inputs in the recording so far."""
        self._unreadable_counted = 0
        """Number of invalid inputs that the live client or server sent before its last message."""
        self._matched: dict[Key, ReceivedMessage] = {}
        """For each recorded request of the other side, the request received in its place during the replay."""
        self.comparing = Comparison()

    # The following methods exchange messages with the live client or server.

    async def read(self) -> None:
        try:
            while True:
                try:
                    received = await self._transport.receive()
                except UnreadableFrame as error:
                    self._unreadable.append(error.reason)
                    continue
                if isinstance(received, ReplyLost):
                    if received.request_id not in self._left:
                        lost = {"error": {"code": 0, "message": str(received.error)}}
                        self._replies.setdefault(received.request_id, lost)
                else:
                    is_line = isinstance(received, bytes | bytearray)
                    message = decode(received) if is_line else getattr(received, "message", None)
                    for each in message.members if isinstance(message, Batch) else (message,):
                        self._receive(each)
                self._news.unpark_all()
        except (trio.EndOfChannel, ConnectionLost):
            self._is_over = True
            self._news.unpark_all()

    def _receive(self, message: object) -> None:
        match message:
            case Response():
                self._replies[message.id] = {"result": message.result}
            case ErrorResponse(id=int() | str() as reply_id):
                error = {"code": message.code, "message": message.message}
                self._replies[reply_id] = {"error": error if message.data is None else {**error, "data": message.data}}
            case Request():
                self._received.append(ReceivedMessage(message.method, message.params, message.id))
            case Notification():
                self._received.append(ReceivedMessage(message.method, message.params))
            case Unreadable():
                self._unreadable.append(message.reason)
                return
            case _:
                pass
        self._unreadable_counted = len(self._unreadable)

    async def write(self) -> None:
        try:
            while True:
                await self._transport.send(await self._outbox.take())
        except ConnectionLost:
            self._outbox.close()

    async def _until(self, ready: Callable[[], object]) -> bool:
        """Wait until ``ready()`` is true. Return false after a timeout, or if the live client or server ends
        the connection."""
        with trio.move_on_after(self._patience):
            while not (ready() or self._is_over):
                await self._news.park()
        return bool(ready())

    # Messages of the recording

    async def play(self, recorded: Recorded) -> None:
        is_by_server = recorded.header.role == "server"
        ours = "out" if is_by_server == (self._side == "server") else "in"
        last = -math.inf
        for entry in recorded:
            gap = min(max(0.0, (entry.t - last) / 1e6), self._patience)
            for message in entry.messages:
                if entry.dir == ours:
                    await self._send(message, entry, gap)
                elif _is_readable(message, entry):
                    await self._expect(message, entry)
            if entry.dir not in (None, ours):
                self._unreadable_before += _unreadable_in(entry)
            elif entry.event == "unreadable" and ours == "out":
                self._unreadable_before += 1
            if entry.dir is not None:
                last = entry.t
            elif entry.event == "cancel.received" and entry.cause == "disconnect" and self._side == "client":
                # The client cancelled by closing the stream (2026-07-28 streamable HTTP, section Cancellation).
                await self._leave(self._sent.get((entry.post, entry.id)), None, 0.0)
        self._report_missing()

    def _report_missing(self) -> None:
        # Report invalid messages only if there are more of them than in the recording.
        # Don't report fewer invalid messages: the text that a program prints last may not have arrived yet.
        # The recording may lack text that a program wrote after its last message.
        for reason in self._unreadable[self._unreadable_before : self._unreadable_counted]:
            self.comparing.add_difference(f"a message of the {self._other}", "a message", reason)
        for heard in self._received:
            if heard.method != _PROGRESS:
                self.comparing.add_difference(self._name(heard), "none", self.comparing.masked_text(heard.params))
        for sent in self._sent.values():
            if not sent.is_expected and sent.id in self._replies:
                none = "no answer, since it was cancelled" if sent.id in self._left else "no answer"
                self.comparing.add_difference(sent.name, none, self.comparing.masked_text(self._replies[sent.id]))

    async def _send(self, message: dict[str, Any], entry: RecordedEntry, gap: float) -> None:
        message = self.comparing.with_live_values(message)
        method, message_id, params = message.get("method"), plain_id(message.get("id")), message.get("params")
        if entry.cut:
            self.comparing.add_difference(
                str(method), "a message that was too long to be recorded", "nothing: it was not sent"
            )
            return
        if isinstance(method, str) and message_id is not None:
            self._request(method, message_id, params, entry.post)
        elif method == _CANCELLED and isinstance(params, dict):
            given = cast("dict[str, Any]", params)
            await self._leave(self._sent.get((entry.post, plain_id(given.get("requestId")))), given.get("reason"), gap)
        elif isinstance(method, str):
            self._outbox.put(frame_notification(method, self._addressed(params, entry.post)) + b"\n")
        elif message_id is not None:
            met = self._matched.get((entry.post, message_id))
            if met is None or met.id is None:
                # The request that this recorded reply answers hasn't arrived. This difference was already reported.
                return
            self._outbox.put(_reply(met.id, message, self._addressed(message.get("result"), entry.post)) + b"\n")
        with trio.move_on_after(self._patience) as scope:
            await self._outbox.flushed()
        if scope.cancelled_caught:
            self.comparing.add_difference(str(method), f"a {self._other} that reads", f"a {self._other} that does not")

    def _request(self, method: str, message_id: RequestId, params: Any, post: int) -> None:
        name = as_object(params).get("name", "")
        live = message_id if message_id not in self._used else _FRESH + len(self._used)
        self._used.add(live)
        named = token = plain_id(meta_of(params).get(PROGRESS_TOKEN))
        if token is not None and live != message_id:
            params = {**cast("dict[str, Any]", params), "_meta": {**meta_of(params), PROGRESS_TOKEN: live}}
            token = live
        words = f"{method} {name} (id {message_id!r})".replace("  ", " ")
        sent = self._sent[post, message_id] = SentRequest(live, words, token)
        if named is not None:
            self._tokens[post, named] = sent
        self._outbox.put_request(live, method, params, None)

    async def _leave(self, sent: SentRequest | None, reason: str | None, gap: float) -> None:
        """Wait for ``gap`` seconds, as in the recording, and then cancel a request that the replay has sent."""
        if sent is not None and sent.id not in self._left and not sent.is_expected:
            await trio.sleep(gap)
            self._left.add(sent.id)
            self._outbox.put_cancel(sent.id, reason)

    def _addressed(self, data: Any, post: int) -> Any:
        """Return recorded ``data`` in which the ids of the other side's requests are replaced by the ids in the
        replay."""
        if not isinstance(data, dict):
            return data
        members = dict(cast("dict[str, Any]", data))
        token, meta = plain_id(members.get(PROGRESS_TOKEN)), dict(meta_of(members))
        if (met := self._matched.get((post, token))) is not None:
            members[PROGRESS_TOKEN] = meta_of(met.params).get(PROGRESS_TOKEN, token)
        if (met := self._matched.get((post, plain_id(meta.get(SUBSCRIPTION_ID))))) is not None:
            members["_meta"] = {**meta, SUBSCRIPTION_ID: met.id}
        return members

    async def _expect(self, message: dict[str, Any], entry: RecordedEntry) -> None:
        method, message_id = message.get("method"), plain_id(message.get("id"))
        params: Any = message.get("params")
        if method == _PROGRESS and message_id is None:
            await self._expect_progress(params, entry)
        elif isinstance(method, str):
            await self._expect_call(ReceivedMessage(method, params, message_id), entry)
        elif message_id is not None:
            await self._expect_reply(message, message_id, entry)

    async def _expect_reply(self, message: dict[str, Any], message_id: RequestId, entry: RecordedEntry) -> None:
        sent = self._sent.get((entry.post, message_id))
        if sent is None:
            return  # the request wasn't recorded, or was too long to be recorded
        sent.is_expected = True
        if not await self._until(lambda: sent.id in self._replies):
            self.comparing.add_difference(sent.name, "an answer", "none")
        elif not entry.cut:
            kept = {part: message[part] for part in ("result", "error") if part in message}
            self.comparing.compare(sent.name, kept, self._replies[sent.id])
            steps = list(self._progress_of(sent))
            self._received = [each for each in self._received if each not in steps]
            if sent.last is not None and steps:
                self.comparing.compare(f"the last progress of {sent.name}", sent.last, steps[-1].params)
            elif steps:
                self.comparing.add_difference(f"the progress of {sent.name}", "none", text_of(steps[-1].params))

    def _progress_of(self, sent: SentRequest) -> Iterator[ReceivedMessage]:
        for each in self._received:
            if each.method == _PROGRESS and each.member(PROGRESS_TOKEN) == sent.token:
                yield each

    async def _expect_progress(self, params: Any, entry: RecordedEntry) -> None:
        given = ReceivedMessage(_PROGRESS, params)
        sent = self._tokens.get((entry.post, plain_id(given.member(PROGRESS_TOKEN))))
        if sent is None or sent.token is None:
            return
        sent.last = params

        def has_come() -> bool:
            return sent.id in self._replies or any(each.value >= given.value for each in self._progress_of(sent))

        if not await self._until(has_come):
            self.comparing.add_difference(f"the progress of {sent.name}", text_of(params), "none")

    async def _expect_call(self, given: ReceivedMessage, entry: RecordedEntry) -> None:
        """Wait until the live client or server sends a request or notification with the same method as the recorded
        message ``given``.

        Compare ``given`` with the most similar message that has arrived.
        """
        cancelled = plain_id(given.member("requestId")) if given.method == _CANCELLED else None
        about = self._matched.get((entry.post, cancelled))

        def fitting() -> list[ReceivedMessage]:
            return [
                each
                for each in self._received
                if (each.id is None) is (given.id is None)
                and each.method == given.method
                and (about is None or each.member("requestId") == about.id)
            ]

        name, params = self._name(given), given.params
        if not await self._until(fitting):
            self.comparing.add_difference(name, text_of(params), "none")
            return
        found = fitting()
        best = next((each for each in found if self.comparing.is_same(params, each.params)), found[0])
        self._received.remove(best)
        if given.id is not None:
            self._matched[entry.post, given.id] = best
        if not entry.cut:
            self.comparing.compare(name, {"params": params}, {"params": best.params})

    def _name(self, heard: ReceivedMessage) -> str:
        return f"the {'notification' if heard.id is None else self._question} {heard.method}"


def _unreadable_in(entry: RecordedEntry) -> int:
    """Return how many received or sent messages in the recorded ``entry`` are invalid."""
    data: Any = entry.message
    items = cast("list[Any]", data if isinstance(data, list) and data else [data])
    return len(items) - sum(_is_readable(each, entry) for each in entry.messages)


def _is_readable(message: dict[str, Any], entry: RecordedEntry) -> bool:
    return entry.cut or not isinstance(decode(msgspec.json.encode(message)), Unreadable)


def _reply(live: RequestId, message: dict[str, Any], result: Any) -> bytes:
    error: Any = message.get("error")
    if isinstance(error, dict):
        members = cast("dict[str, Any]", error)
        return frame_error(live, members.get("code", 0), str(members.get("message", "")), members.get("data"))
    return frame_result(live, result)
