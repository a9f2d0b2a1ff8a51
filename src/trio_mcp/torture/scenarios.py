"""Scenario: one black-box check of a server or a client. `run_scenarios` plays scenarios and yields their outcomes.
`TorturePeer` is the base class of the scripted peers that scenarios use."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

import attrs
import trio

from ..classes import frozen
from ..concurrency.nurseries import sole_exception
from ..jsonrpc.errors import MCPError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject, as_object
from ..protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from ..testing.scripted_peer import MissingMessage, ScriptedPeer, differences
from ..transports.process import ProcessGroup, ProcessTransport

Level: TypeAlias = Literal["MUST", "SHOULD", "better"]
"""How strictly a scenario's behavior is required. MUST and SHOULD are words of the specification. ``better`` isn't
required by any clause, but users notice if the behavior is missing."""
Era: TypeAlias = Literal["legacy", "modern"]
ERAS: Final[Sequence[Era]] = ("legacy", "modern")
Need: TypeAlias = Literal["lines", "process", "http"]
"""What a scenario needs: a transport of lines, a server that is started over stdio, or a server over HTTP."""
Status: TypeAlias = Literal["passed", "failed", "skipped"]

_TIME_LIMIT: Final = 90.0
"""Seconds after which a scenario fails, with a patience of 1. Each scenario has shorter limits of its own."""


class Failed(AssertionError):
    """Raised if the server or client under test fails a scenario. The message says what it did wrong."""


class Skipped(Exception):
    """Raised if a scenario can't be run against this server or client. The message says why."""


@frozen
class Scenario:
    """A scripted test of one required behavior of a server or client."""

    id: str
    play: Callable[[Any], Awaitable[None]] = attrs.field(repr=False)
    """The function that plays the scenario. It takes a scripted peer that is connected to the server or client under
    test, and raises `Failed` or `Skipped`."""
    title: str
    """The behavior that the scenario requires, as one sentence."""
    level: Level
    clause: str
    """The clause of the specification, or the other reason for the requirement."""
    meaning: str
    """The consequence that a user notices if the scenario fails."""
    eras: Sequence[Era] = ERAS
    capabilities: JSONObject = attrs.field(factory=dict[str, Any])
    """The capabilities that a scripted client declares."""
    needs: Need | None = None


def read_texts() -> dict[str, Any]:
    """Return the content of ``scenarios.toml``: the texts of all scenarios, and the tools that servers under test
    need."""
    return tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text("utf-8"))


def load_scenarios(side: Literal["server", "client"], plays: Mapping[str, Any]) -> list[Scenario]:
    """Return all scenarios for one ``side``: those that test a server, or those that test a client.

    ``plays`` contains the functions that play the scenarios, keyed by name.
    """
    return [Scenario(id, plays[id.replace("-", "_")], **texts) for id, texts in read_texts()[side].items()]


@frozen
class UnderTest(ABC):
    """The server or client that the scenarios test, and whether it speaks a legacy or a modern protocol revision."""

    era: Era
    patience: float = attrs.field(default=1.0, kw_only=True)
    """Factor for the time limits within which the server or client must react."""

    @property
    def revision(self) -> str:
        """The protocol revision that the scripted peer speaks with the server or client under test."""
        return (LATEST_LEGACY if self.era == "legacy" else LATEST_MODERN).name

    def missing(self, need: Need) -> str | None:
        """Return why this server or client can't run a scenario that requires the transport ``need``. Return `None` if
        it can."""
        return None

    @abstractmethod
    def opened(self, capabilities: JSONObject | None = None) -> AbstractAsyncContextManager[Any]:
        """Open a new connection to the program under test, and yield the scripted peer at its other end.

        The handshake is already done.
        """


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


@frozen
class ScenarioOutcome:
    """The outcome of one scenario: passed, failed or skipped, and the reason."""

    scenario: Scenario
    era: Era
    status: Status
    reason: str = ""

    def as_json(self) -> JSONObject:
        """Return the outcome as a JSON object, which programs can read."""
        texts = {name: getattr(self.scenario, name) for name in ("id", "level", "title", "clause", "meaning")}
        return {**texts, "era": self.era, "status": self.status, "reason": self.reason}


async def run_scenarios(scenarios: list[Scenario], under_test: UnderTest) -> AsyncGenerator[ScenarioOutcome]:
    """Run the scenarios for the protocol revision that ``under_test`` speaks, one after another, and yield each
    outcome."""
    for scenario in scenarios:
        if under_test.era in scenario.eras:
            status, reason = await _played(scenario, under_test)
            yield ScenarioOutcome(scenario, under_test.era, status, reason)


async def _played(scenario: Scenario, under_test: UnderTest) -> tuple[Status, str]:
    if scenario.needs is not None and (missing := under_test.missing(scenario.needs)):
        return "skipped", missing
    time_limit = _TIME_LIMIT * under_test.patience
    try:
        with trio.fail_after(time_limit):
            async with under_test.opened(scenario.capabilities) as peer:
                await scenario.play(peer)
    except trio.TooSlowError:
        return "failed", f"the scenario didn't end within {time_limit:g} seconds"
    except (AssertionError, Skipped, MCPError, OSError, EOFError, ValueError, ExceptionGroup) as error:
        cause = sole_exception(error)
        reason = " ".join(str(cause).split())[:300] or type(cause).__name__
        return "skipped" if isinstance(cause, Skipped) else "failed", reason
    return "passed", ""
