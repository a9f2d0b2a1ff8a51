"""The other end of a connection, and the stream between, with nothing in them that counts."""

from __future__ import annotations

import json
from typing import Any

import trio

__all__ = ["ScriptedStream"]


class ScriptedStream:
    """What is `give`-n to it is read from it; what is written to it is `taken`."""

    def __init__(self) -> None:
        self._given = bytearray()
        self._written = bytearray()
        self._moved = trio.lowlevel.ParkingLot()

    # The connection's side

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._given:
            await self._moved.park()
        data, self._given = bytes(self._given), bytearray()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._written += data
        self._moved.unpark_all()

    def send_nowait(self, data: bytes) -> int:
        self._written += data
        self._moved.unpark_all()
        return len(data)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    # The other side

    def give(self, *messages: bytes) -> None:
        """Let the connection read ``messages``."""
        for message in messages:
            self._given += message + b"\n"
        self._moved.unpark_all()

    async def taken(self) -> list[dict[str, Any]]:
        """What the connection has written, at least one message."""
        while not self._written:
            await self._moved.park()
        data, self._written = self._written, bytearray()
        return [json.loads(line) for line in data.splitlines()]

    async def reply(self, request_id: int) -> list[dict[str, Any]]:
        """All that the connection writes up to the reply to ``request_id``."""
        received: list[dict[str, Any]] = []
        while not any(message.get("id") == request_id and "result" in message for message in received):
            received += await self.taken()
        return received
