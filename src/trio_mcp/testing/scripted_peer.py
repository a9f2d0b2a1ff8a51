"""ScriptedPeer: an end of a connection, controlled by a test message by message.

A message is compared with a `Pattern`: the JSON data that is expected, with ``...`` where any value will do.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
import trio

from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..runtime.transport import ConnectionLost, Transport

_LATEST_SHOWN: Final = 12
_LONGEST_MESSAGE: Final = 2000

Transcript: TypeAlias = list[tuple[Literal["sent", "received"], Any]]
"""The messages that a scripted peer has sent and received, in order."""


class UnexpectedMessage(AssertionError):
    """The received message ``got`` is not the ``expected`` one."""

    def __init__(self, expected: Pattern, got: Any, faults: list[str], transcript: Transcript) -> None:
        lines = ["another message was expected", f"  expected: {shown(expected)}", f"  got:      {shown(got)}"]
        lines += [f"  {fault}" for fault in faults]
        super().__init__("\n".join(lines + _latest(transcript)))
        self.expected = expected
        self.got = got


class MissingMessage(AssertionError):
    """A message was ``expected`` and none came. ``ended`` is true when the connection ended, false when the time was
    over."""

    def __init__(self, expected: Pattern, reason: str, transcript: Transcript, *, ended: bool) -> None:
        lines = [f"no message came: {reason}", f"  expected: {shown(expected)}"]
        super().__init__("\n".join(lines + _latest(transcript)))
        self.expected = expected
        self.ended = ended


def _latest(transcript: Transcript) -> list[str]:
    arrows = {"sent": "-->", "received": "<--"}
    lines = [f"    {arrows[way]} {shown(message)[:_LONGEST_MESSAGE]}" for way, message in transcript[-_LATEST_SHOWN:]]
    return ["  the conversation so far (--> sent by the script):", *lines] if lines else []


class ScriptedPeer:
    """Send exactly the given messages, and check the received ones. `ScriptedClient` and `ScriptedServer` know more.

    ``patience`` is the time to wait for a message, in seconds of trio's clock, which cost no time under a virtual
    clock. A dict gets the member ``"jsonrpc": "2.0"`` unless present, as a message and as a pattern; bytes and strings
    are sent unchanged, as one line.
    """

    def __init__(self, channel: Transport, *, patience: float = 10.0) -> None:
        self._channel = channel
        self.patience = patience
        self.transcript: Transcript = []
        """Every message so far, sent or read, in order."""

    # Sending

    async def send(self, message: JSONObject | list[Any] | str | bytes) -> None:
        """Send a message. Raises `ConnectionLost` when nobody reads any more."""
        if isinstance(message, dict):
            message = _completed(message)
        if isinstance(message, str):
            message = message.encode()
        line = message if isinstance(message, bytes) else msgspec.json.encode(message)
        self.transcript.append(("sent", message))
        await self._channel.send(line + b"\n")

    async def notify(self, method: str, params: JSONObject | None = None) -> None:
        """Send a notification."""
        await self.send({"method": method} if params is None else {"method": method, "params": params})

    async def answer(self, request: JSONObject, result: Any) -> None:
        """Answer ``request``, as it was received."""
        await self.send({"id": request["id"], "result": result})

    async def refuse(self, request: JSONObject, code: int, message: str = "refused", data: Any = None) -> None:
        """Answer ``request`` with an error."""
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        await self.send({"id": request["id"], "error": error})

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> None:
        """Tell the other side that this request of ours is cancelled."""
        more = {} if reason is None else {"reason": reason}
        await self.notify("notifications/cancelled", {"requestId": request_id, **more})

    # Receiving

    async def receive(self) -> Any:
        """Return the next message. Raises `MissingMessage` when none comes, and `UnexpectedMessage` for text that is
        not JSON."""
        return await self._receive(...)

    async def _receive(self, expected: Pattern) -> Any:
        return await self._receive_within(self.patience, expected)

    async def _receive_within(self, seconds: float, expected: Pattern) -> Any:
        reason, ended = f"nothing within {seconds:g} seconds", False
        line: bytes | None = None
        with trio.move_on_after(seconds):
            try:
                line = bytes(await self._channel.receive())
            except trio.EndOfChannel:
                reason, ended = "the other side sends no more", True
            except ConnectionLost as error:
                reason, ended = str(error), True
        if line is None:
            raise MissingMessage(expected, reason, self.transcript, ended=ended)
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnexpectedMessage(expected, line, [f"it is no JSON: {error}"], self.transcript) from None
        self.transcript.append(("received", message))
        return message

    async def expect(self, pattern: Pattern) -> Any:
        """Return the next message, which has to fit ``pattern`` (see `Pattern`).

        Raises `UnexpectedMessage` for a different message, and `MissingMessage` when none comes.
        """
        pattern = _completed(pattern)
        message = await self._receive(pattern)
        if faults := differences(pattern, message):
            raise UnexpectedMessage(pattern, message, faults, self.transcript)
        return message

    async def until(self, pattern: Pattern) -> Any:
        """Return the next message that fits ``pattern``; earlier messages are skipped, and stay in `transcript`."""
        pattern = _completed(pattern)
        while differences(pattern, message := await self._receive(pattern)):
            pass
        return message

    async def expect_silence(self, seconds: float) -> None:
        """Check that nothing comes for ``seconds`` and the connection stays open. Raises `UnexpectedMessage`,
        `MissingMessage`."""
        try:
            message = await self._receive_within(seconds, "silence")
        except MissingMessage as missing:
            if missing.ended:
                raise
        else:
            raise UnexpectedMessage("silence", message, [], self.transcript)

    async def expect_end(self) -> None:
        """Check that the other side closes the connection, and sends nothing before. Raises as `expect_silence`."""
        try:
            message = await self._receive("the end of the connection")
        except MissingMessage as missing:
            if not missing.ended:
                raise
        else:
            raise UnexpectedMessage("the end of the connection", message, [], self.transcript)

    async def read_to_end(self) -> None:
        """Read until the other side closes, however long that takes; the messages are added to `transcript`."""
        with suppress(MissingMessage):
            while True:
                await self._receive_within(math.inf, ...)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._channel.aclose()


def _completed(message: Any) -> Any:
    return {"jsonrpc": "2.0", **cast("dict[Any, Any]", message)} if isinstance(message, dict) else message


Pattern: TypeAlias = Any
"""JSON data in which ``...`` stands for any value, and ``{"id": 1, ...: ...}`` for an object with any further members.
Everything else is equal with its JSON type: ``1``, ``1.0``, ``"1"`` and ``True`` all differ. An object that is not
JSON, such as `unittest.mock.ANY` or `pytest.approx`, is compared by ``==``."""

_LONGEST_VALUE = 300


def differences(expected: Pattern, got: Any, place: str = "$") -> list[str]:
    """Return the differences of ``got`` from ``expected``, a line for each place; empty when ``got`` fits."""
    if expected is ...:
        return []
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [_differs(place, expected, got)]
        return _members(cast("dict[Any, Any]", expected), cast("JSONObject", got), place)
    if isinstance(expected, list):
        items = cast("list[Any]", expected)
        if not isinstance(got, list) or len(items) != len(cast("list[Any]", got)):
            return [_differs(place, expected, got)]
        pairs = enumerate(zip(items, cast("list[Any]", got), strict=True))
        return [line for number, (one, other) in pairs for line in differences(one, other, f"{place}[{number}]")]
    if isinstance(expected, str | int | float | None) and type(expected) is not type(got):
        return [_differs(place, expected, got)]
    return [] if expected == got else [_differs(place, expected, got)]


def _members(expected: dict[Any, Any], got: JSONObject, place: str) -> list[str]:
    lines: list[str] = []
    for name, value in expected.items():
        if name is ...:
            continue
        if name not in got:
            lines.append(f"{place}.{name}: expected {_short(value)}, but it is missing")
        else:
            lines += differences(value, got[name], f"{place}.{name}")
    if ... not in expected:
        lines += [f"{place}.{name}: not expected, got {_short(got[name])}" for name in got if name not in expected]
    return lines


def _differs(place: str, expected: Pattern, got: Any) -> str:
    return f"{place}: expected {_short(expected)}, got {_short(got)}"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({len(text)} characters)"


def shown(pattern: Pattern) -> str:
    """Return the pattern or message as JSON on one line, for people."""
    if pattern is ...:
        return "..."
    if isinstance(pattern, dict):
        members = cast("dict[Any, Any]", pattern).items()
        return (
            "{" + ", ".join("..." if name is ... else f"{shown(name)}: {shown(value)}" for name, value in members) + "}"
        )
    if isinstance(pattern, list):
        return "[" + ", ".join(map(shown, cast("list[Any]", pattern))) + "]"
    if isinstance(pattern, str | int | float | None):
        return msgspec.json.encode(pattern).decode()
    return repr(pattern)
