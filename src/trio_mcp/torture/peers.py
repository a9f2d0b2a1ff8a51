"""TorturePeer: the base class of the scripted peers that scenarios use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import trio

from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject, as_object
from ..testing.scripted_peer import MissingMessage, ScriptedPeer, differences
from ..transports.process import ProcessTransport
from ..transports.process_tree import ProcessGroup
from .scenarios import Failed, UnderTest

PROMPTLY: Final = 2.0
"""Seconds within which the other side must react, with a patience of 1."""
QUIET: Final = 1.0
"""Seconds for which a scenario checks that the other side sends no forbidden messages."""


U = TypeVar("U", bound=UnderTest)


class TorturePeer(ScriptedPeer, Generic[U]):
    """A scripted peer of the program under test, with the checks that scenarios make.

    The time limits ``within`` are multiplied by the patience of ``under_test``.
    """

    under_test: U
    process: ProcessTransport
    """The process of the program under test. Not set if this program didn't start the server."""

    async def next_message(self) -> JSONObject:
        """Return the next message. Raises `Failed` if the other side ends the connection."""
        try:
            message = await self.receive()
        except MissingMessage:
            raise Failed("the other side ended the connection") from None
        if not isinstance(message, dict):
            raise Failed(f"the other side sent a message that isn't a JSON object: {str(message)[:200]}")
        return cast("JSONObject", message)

    async def seen(self, pattern: JSONObject, otherwise: str, within: float = 3 * PROMPTLY) -> JSONObject:
        """Wait for a message that contains the members of ``pattern``, and return it. Messages without them are
        skipped.

        Raises `Failed` with the text ``otherwise`` if no such message arrives within ``within`` seconds.
        """
        expected: dict[Any, Any] = {**pattern, ...: ...}
        return await self._first(lambda message: not differences(expected, message), otherwise, within)

    async def response(self, request_id: RequestId, within: float = 3 * PROMPTLY) -> JSONObject:
        """Return the response to a request. It may have arrived before this call.

        Raises `Failed` if the response doesn't arrive within ``within`` seconds.
        """

        def is_response(message: JSONObject) -> bool:
            return message.get("id") == request_id and "method" not in message

        earlier = next(filter(is_response, self.received()), None)
        return earlier or await self._first(
            is_response, f"the other side sent no response to request {request_id!r}", within
        )

    async def _first(self, wanted: Callable[[JSONObject], bool], otherwise: str, within: float) -> JSONObject:
        seconds = within * self.under_test.patience
        with trio.move_on_after(seconds):
            while not wanted(message := await self.next_message()):
                pass
            return message
        raise Failed(f"time limit exceeded: {otherwise} within {seconds:g} s")

    async def drain(self, seconds: float) -> None:
        """Read messages for ``seconds``, and add them to `transcript`. Raises `Failed` if the connection ends."""
        with trio.move_on_after(seconds):
            while True:
                await self.next_message()

    def received(self, **members: Any) -> list[JSONObject]:
        """Return all messages received so far that contain the given JSON members."""
        found = [as_object(message) for way, message in self.transcript if way == "received"]
        return [message for message in found if members.items() <= message.items()]

    async def check_exit(self, within: float) -> None:
        """Check that the program under test exits, and that no process of its process group keeps running.

        Raises `Failed` otherwise.
        """
        seconds = within * self.under_test.patience
        with trio.move_on_after(seconds) as scope:
            await self.process.exited()
        if scope.cancelled_caught:
            raise Failed(f"the process of the program under test still runs after {seconds:g} s")
        with trio.move_on_after(PROMPTLY * self.under_test.patience) as scope:
            await ProcessGroup(self.process.pid).wait_gone()
        if scope.cancelled_caught:
            raise Failed("the process has exited, but a process that it started still runs")
