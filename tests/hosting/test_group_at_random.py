"""Whatever is done to a group, in whatever order: nobody hangs, nobody is cancelled, no call is made twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.hosting.members import QUICK, describe, hangs, refuses, serves, target_of
from trio.testing import MockClock

from trio_mcp import ConnectionLost
from trio_mcp.hosting import Group, MemberDescription, MemberState, MemberUnavailable, NotInCatalogue, open_group

EXPECTED = (ConnectionLost, MemberUnavailable, NotInCatalogue, trio.TooSlowError)
NAMES = ("a", "b")
SCRIPTS = {
    "well": [serves("echo", "die", "wait")],
    "short-lived": [serves("echo", "die", "wait", first_death=7)],
    "refuses": [refuses],
    "recovers": [refuses, hangs, serves("echo", "die", "wait")],
}

steps = st.tuples(
    st.sampled_from(["add", "remove", "echo", "die", "wait", "settle", "client"]),
    st.sampled_from(NAMES),
    st.sampled_from(sorted(SCRIPTS)),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 2.0, 15.0]),
)


class Playing:
    """Does one step after another, without waiting for any to be done."""

    def __init__(self) -> None:
        self.descriptions: list[MemberDescription] = []
        self.outcomes: Counter[str] = Counter()
        self.asked = 0

    async def play(self, script: list[Any]) -> None:
        async with open_group(connect_timeout=4, call_timeout=20) as group:
            async with trio.open_nursery() as nursery:
                news = group.watch()
                for what, name, kind, restart, pause in script:
                    nursery.start_soon(self.do, group, what, name, kind, restart)
                    await trio.sleep(pause)
            told = await latest(news)
            assert told == {name: status.state for name, status in group.statuses.items()}
        assert group.statuses == {}

    async def do(self, group: Group, what: str, name: str, kind: str, restart: bool) -> None:
        try:
            if what == "add":
                description = describe(*SCRIPTS[kind], restart=QUICK if restart else None)
                if name not in group.statuses:
                    group.add(name, description)
                    self.descriptions.append(description)
            elif what == "remove":
                await group.remove(name)
            elif what == "settle":
                await group.settled()
            elif what == "client":
                assert (await group.client(name)).lost is None
            else:
                self.asked += 1
                assert (await group.call_tool(f"{name}__{what}")).text == what
        except EXPECTED as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["done"] += 1


async def latest(news: Any) -> dict[str, MemberState]:
    """The state of each member, as far as news tell."""
    known: dict[str, MemberState] = {}
    with trio.move_on_after(0.001):
        async for status in news:
            known[status.name] = status.state
    return {name: state for name, state in known.items() if state != MemberState.CLOSED}


@settings(max_examples=examples(60))
@given(st.lists(steps, max_size=25))
def test_group_calls_never_hang_and_are_never_cancelled_or_repeated_during_random_operations(script: list[Any]) -> None:
    playing = Playing()

    async def bounded() -> None:
        with trio.fail_after(10_000):
            await playing.play(script)

    trio.run(bounded, clock=MockClock(autojump_threshold=0))
    assert playing.outcomes.total() == len(script)
    assert sum(target_of(description).calls() for description in playing.descriptions) <= playing.asked
