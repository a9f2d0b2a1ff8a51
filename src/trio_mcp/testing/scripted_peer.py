"""ScriptedPeer: one end of a connection that a test controls message by message.

Each message is compared with a `Pattern`: the expected JSON data, with ``...`` where any value is accepted.
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
    """Raised if a scripted peer receives the message ``got``, which doesn't match ``expected``."""

    def __init__(self, expected: Pattern, got: Any, faults: list[str], transcript: Transcript) -> None:
        lines = ["unexpected message", f"  expected: {shown(expected)}", f"  got:      {shown(got)}"]
        lines += [f"  {fault}" for fault in faults]
        super().__init__("\n".join(lines + _latest(transcript)))
        self.expected = expected
        """The pattern that the message should have matched."""
        self.got = got
        """The message as received, as JSON data."""


class MissingMessage(AssertionError):
    """Raised if a scripted peer waits for a message, and no message arrives. ``expected`` describes the missing
    message, for example a message pattern.

    ``ended`` is true if the connection ended, and false if the time ran out.
    """

    def __init__(self, expected: Pattern, reason: str, transcript: Transcript, *, ended: bool) -> None:
        lines = [f"no message arrived: {reason}", f"  expected: {shown(expected)}"]
        super().__init__("\n".join(lines + _latest(transcript)))
        self.expected = expected
        """The pattern that the message should have matched."""
        self.ended = ended
        """True if the connection ended, false if the time ran out."""


def _latest(transcript: Transcript) -> list[str]:
    arrows = {"sent": "-->", "received": "<--"}
    lines = [f"    {arrows[way]} {shown(message)[:_LONGEST_MESSAGE]}" for way, message in transcript[-_LATEST_SHOWN:]]
    return ["  the conversation so far (--> sent by the script):", *lines] if lines else []


class ScriptedPeer:
    """One end of a connection, controlled by a test. It sends exactly the test's messages, and checks the messages it
    receives.

    `ScriptedClient` and `ScriptedServer` are subclasses with more methods.

    The member ``"jsonrpc": "2.0"`` is added to messages and patterns that are dicts without it. Bytes and strings are
    sent unchanged, as one line.

    Args:
        patience: How long to wait for a message, in seconds of trio's clock. A virtual clock skips this time.
    """

    def __init__(self, channel: Transport, *, patience: float = 10.0) -> None:
        self._channel = channel
        self.patience = patience
        self.transcript: Transcript = []
        """All messages sent and received so far, in order."""

    # Sending

    async def send(self, message: JSONObject | list[Any] | str | bytes) -> None:
        """Send a message to the side under test. Raises `ConnectionLost` if the side under test no longer reads."""
        if isinstance(message, dict):
            message = _completed(message)
        if isinstance(message, str):
            message = message.encode()
        line = message if isinstance(message, bytes) else msgspec.json.encode(message)
        self.transcript.append(("sent", message))
        await self._channel.send(line + b"\n")

    async def notify(self, method: str, params: JSONObject | None = None) -> None:
        """Send a notification to the side under test."""
        await self.send({"method": method} if params is None else {"method": method, "params": params})

    async def answer(self, request: JSONObject, result: Any) -> None:
        """Send ``result`` as the reply to ``request``, a request message as returned by `expect`."""
        await self.send({"id": request["id"], "result": result})

    async def refuse(self, request: JSONObject, code: int, message: str = "refused", data: Any = None) -> None:
        """Send an error as the reply to ``request``, a request message as returned by `expect`."""
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        await self.send({"id": request["id"], "error": error})

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> None:
        """Send a cancel notification for a request that the scripted peer sent."""
        more = {} if reason is None else {"reason": reason}
        await self.notify("notifications/cancelled", {"requestId": request_id, **more})

    # Receiving

    async def receive(self) -> Any:
        """Return the next message from the side under test.

        Raises `MissingMessage` if none arrives in time, and `UnexpectedMessage` for text that isn't JSON.
        """
        return await self._receive(...)

    async def _receive(self, expected: Pattern, seconds: float | None = None) -> Any:
        seconds = self.patience if seconds is None else seconds
        reason, ended = f"nothing within {seconds:g} seconds", False
        line: bytes | None = None
        with trio.move_on_after(seconds):
            try:
                line = bytes(await self._channel.receive())
            except trio.EndOfChannel:
                reason, ended = "the other side closed the connection", True
            except ConnectionLost as error:
                reason, ended = str(error), True
        if line is None:
            raise MissingMessage(expected, reason, self.transcript, ended=ended)
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnexpectedMessage(expected, line, [f"not JSON: {error}"], self.transcript) from None
        self.transcript.append(("received", message))
        return message

    async def expect(self, pattern: Pattern) -> Any:
        """Check that the next message matches ``pattern``, and return the message. See `Pattern`.

        Raises `UnexpectedMessage` for a message that differs, and `MissingMessage` if none arrives in time.
        """
        pattern = _completed(pattern)
        message = await self._receive(pattern)
        if faults := differences(pattern, message):
            raise UnexpectedMessage(pattern, message, faults, self.transcript)
        return message

    async def until(self, pattern: Pattern) -> Any:
        """Read and skip messages until one matches ``pattern``, and return that message. Skipped messages stay in
        `transcript`."""
        pattern = _completed(pattern)
        while differences(pattern, message := await self._receive(pattern)):
            pass
        return message

    async def expect_silence(self, seconds: float) -> None:
        """Check that no message arrives for ``seconds``, and that the connection stays open.

        Raises `UnexpectedMessage` for a message, and `MissingMessage` if the connection ends.
        """
        await self._expect_nothing("silence", seconds, ended=False)

    async def expect_end(self) -> None:
        """Check that the side under test closes the connection without sending another message.

        Raises `UnexpectedMessage` if a message arrives, and `MissingMessage` if the connection stays open.
        """
        await self._expect_nothing("the end of the connection", self.patience, ended=True)

    async def _expect_nothing(self, expected: str, seconds: float, *, ended: bool) -> None:
        try:
            message = await self._receive(expected, seconds)
        except MissingMessage as missing:
            if missing.ended is not ended:
                raise
        else:
            raise UnexpectedMessage(expected, message, [], self.transcript)

    async def read_to_end(self) -> None:
        """Read until the side under test closes the connection, without a time limit. The messages are added to
        `transcript`."""
        with suppress(MissingMessage):
            while True:
                await self._receive(..., math.inf)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._channel.aclose()


def _completed(message: Any) -> Any:
    return {"jsonrpc": "2.0", **cast("dict[Any, Any]", message)} if isinstance(message, dict) else message


Pattern: TypeAlias = Any
"""JSON data to compare a message with, in which ``...`` matches any value.

``{"id": 1, ...: ...}`` matches an object with any further members. All other values must be equal, and of the same JSON
type: ``1``, ``1.0``, ``"1"`` and ``True`` all differ. An object that isn't JSON, such as `unittest.mock.ANY` or
`pytest.approx`, is compared by ``==``.
"""

_LONGEST_VALUE = 300


def differences(expected: Pattern, got: Any, place: str = "$") -> list[str]:
    """Return how ``got`` differs from ``expected``, one line for each differing value; an empty list if ``got``
    matches."""
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
    """Return a pattern or message as readable JSON on one line."""
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
