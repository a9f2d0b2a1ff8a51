"""Cancellations of legacy clients that arrive before their requests, because each message has its own POST."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.http.raw import message
from tests.serving.http.scenes import MemoryEndpoint, Scene, call, cancel, in_memory, messages_in
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.serving.http.session_delivery import MAX_WAITING, WAIT, WINDOW, EarlyCancels

Session = dict[str, str | None]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(scene.server) as one:
        yield one


async def cancels(endpoint: MemoryEndpoint, session: Session, request_id: Any) -> None:
    assert (await endpoint.ask("POST", session, cancel(request_id))).status == 202


async def is_run(scene: Scene, endpoint: MemoryEndpoint, session: Session, request_id: Any, name: str) -> bool:
    """Call `wait` with this id, and return whether its handler runs. If it doesn't, the response must be empty."""
    posted = await endpoint.post(session, call("wait", request_id, name=name))
    await wait_all_tasks_blocked()
    if scene[name].runs:
        assert not scene[name].ended.is_set()
        return True
    answer = await posted.answer()
    assert (answer.status, messages_in(answer)) == (200, [])
    return False


async def test_cancelled_notification_that_arrives_before_its_request_cancels_the_request(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    await cancels(endpoint, session, 5)
    assert not await is_run(scene, endpoint, session, 5, "overtaken")
    assert await is_run(scene, endpoint, session, 6, "next")


@pytest.mark.parametrize("request_id", ["", "a", "5", "🦑", 0, 2**53, -1])
async def test_cancel_that_arrives_before_its_request_applies_only_to_an_id_of_the_same_json_type(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock, request_id: int | str
) -> None:
    session = await endpoint.initialize()
    await cancels(endpoint, session, request_id)
    other = str(request_id) if isinstance(request_id, int) else 5
    assert await is_run(scene, endpoint, session, other, "other")
    assert not await is_run(scene, endpoint, session, request_id, "overtaken")


@pytest.mark.parametrize("request_id", [5, "five"])
async def test_cancel_after_the_response_does_not_cancel_a_later_request_with_the_same_id(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock, request_id: int | str
) -> None:
    session = await endpoint.initialize()
    for body in (call("echo", request_id, text="x"), call("unknown", request_id), message("none", {}, request_id)):
        assert (await endpoint.ask("POST", session, body)).status == 200
        await cancels(endpoint, session, request_id)
    assert await is_run(scene, endpoint, session, request_id, "again")


async def test_cancel_that_arrives_before_its_request_applies_only_to_the_first_request_with_the_id(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    await cancels(endpoint, session, 5)
    assert not await is_run(scene, endpoint, session, 5, "overtaken")
    assert await is_run(scene, endpoint, session, 5, "again")


@pytest.mark.parametrize(("seconds", "is_late"), [(WAIT - 0.1, False), (WAIT + 0.1, True)])
async def test_cancel_that_arrives_long_before_its_request_expires(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock, seconds: float, is_late: bool
) -> None:
    session = await endpoint.initialize()
    await cancels(endpoint, session, 5)
    await trio.sleep(seconds)
    assert await is_run(scene, endpoint, session, 5, "awaited") is is_late


async def test_server_keeps_a_limited_number_of_cancels_that_arrived_before_their_requests(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for request_id in range(1000, 1000 + 3 * MAX_WAITING):
        await cancels(endpoint, session, request_id)
    assert await is_run(scene, endpoint, session, 1000, "oldest")
    assert not await is_run(scene, endpoint, session, 1000 + 3 * MAX_WAITING - 1, "newest")


async def test_cancel_that_arrives_before_its_request_does_not_affect_other_sessions(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    one, two = await endpoint.initialize(), await endpoint.initialize()
    await cancels(endpoint, one, 5)
    assert await is_run(scene, endpoint, two, 5, "theirs")
    assert not await is_run(scene, endpoint, one, 5, "ours")


async def test_cancel_that_arrives_before_its_request_applies_even_if_higher_request_ids_arrived(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for request_id in (7, 9, 8):
        assert await is_run(scene, endpoint, session, request_id, f"{request_id}")
    await cancels(endpoint, session, 6)
    assert not await is_run(scene, endpoint, session, 6, "overtaken")


async def test_cancel_that_arrives_before_its_request_applies_to_requests_inside_batches(
    scene: Scene, endpoint: MemoryEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize("2025-03-26")
    assert (await endpoint.ask("POST", session, [cancel(5), cancel("x")])).status == 202
    answer = await endpoint.ask("POST", session, [call("wait", 5, name="overtaken"), call("echo", 6, text="x")])
    assert [each["id"] for each in answer.json] == [6]
    assert scene["overtaken"].runs == 0


ODD_IDS: tuple[Any, ...] = (None, [], True, 1.5, "x" * 5000)


@pytest.mark.parametrize("params", [{}, [], None, *({"requestId": each} for each in ODD_IDS)])
async def test_malformed_cancels_that_arrive_before_their_requests_are_ignored(
    endpoint: MemoryEndpoint, autojump_clock: MockClock, params: Any
) -> None:
    session = await endpoint.initialize()
    assert (await endpoint.ask("POST", session, message("notifications/cancelled", params))).status == 202
    assert (await endpoint.ask("POST", session, call("echo", "x" * 5000, text="x"))).status == 200


# Without HTTP


def cancel_of(request_id: Any, reason: Any = None) -> Notification:
    return Notification("notifications/cancelled", {"requestId": request_id, "reason": reason})


def test_reason_of_a_cancel_that_arrives_before_its_request_is_truncated() -> None:
    cancels = EarlyCancels()
    for request_id, reason in ((1, "enough"), (2, 7), (3, "x" * 10**6)):
        cancels.cancel_arrived(cancel_of(request_id, reason), 0)
    found = [cancels.request_arrived(request_id, 1) for request_id in (1, 2, 3)]
    assert [each.params for each in found if each is not None] == [
        {"requestId": 1, "reason": "enough"},
        {"requestId": 2, "reason": None},
        {"requestId": 3, "reason": "x" * 1000},
    ]


def test_cancel_for_an_unknown_id_is_ignored_if_the_id_is_far_below_the_highest_received_id() -> None:
    cancels = EarlyCancels()
    cancels.request_arrived(10_000, 0)
    for request_id, is_stored in ((10_001 - WINDOW, True), (10_000 - WINDOW, False), (-1, False)):
        cancels.cancel_arrived(cancel_of(request_id), 0)
        assert (cancels.request_arrived(request_id, 0) is not None) is is_stored


def test_cancel_for_an_unknown_huge_integer_id_is_ignored() -> None:
    cancels = EarlyCancels()
    cancels.cancel_arrived(cancel_of(10**4000), 0)
    assert cancels.request_arrived(10**4000, 0) is None
    assert cancels.request_arrived(10**4001, 0) is None
    cancels.cancel_arrived(cancel_of(5), 0)
    assert cancels.request_arrived(5, 0) is None


IDS = st.one_of(st.integers(-3, 3), st.integers(250, 260), st.sampled_from(["", "1", "a"]))


@given(st.lists(st.tuples(st.sampled_from(["request", "cancel"]), IDS, st.sampled_from([0.0, 0.5, 1.9])), max_size=30))
def test_cancel_that_arrives_before_its_request_applies_only_to_a_new_id_and_for_a_limited_time(
    steps: list[tuple[str, int | str, float]],
) -> None:
    cancels, now = EarlyCancels(), 0.0
    used, cancelled_at = set[int | str](), dict[int | str, float]()
    for step, request_id, seconds in steps:
        now += seconds
        if step == "cancel":
            cancels.cancel_arrived(cancel_of(request_id), now)
            if request_id not in used:
                cancelled_at[request_id] = now
        else:
            found = cancels.request_arrived(request_id, now)
            if found is not None:
                assert request_id not in used
                assert now < cancelled_at[request_id] + WAIT
            elif request_id not in used and request_id in cancelled_at:
                highest = max((each for each in used if isinstance(each, int)), default=0)
                is_old = isinstance(request_id, int) and request_id + WINDOW <= highest
                assert is_old or now >= cancelled_at[request_id] + WAIT
            used.add(request_id)
