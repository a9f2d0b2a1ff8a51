"""Random fault plans are reproducible and have the given probabilities."""

from __future__ import annotations

from collections import Counter

import pytest

from trio_mcp.testing import Delay, Drop, Fault, Garble, MessageInTransit, RandomFaults


def drawn(plan: RandomFaults, count: int = 1000) -> list[Fault | None]:
    return [plan(MessageInTransit("sent", number, b"{}")) for number in range(count)]


def test_random_faults_with_the_same_seed_are_identical() -> None:
    chances = {"delay": 0.2, "drop": 0.2, "duplicate": 0.2, "garble": 0.1, "cut": 0.1, "disconnect": 0.1}
    assert drawn(RandomFaults(7, **chances)) == drawn(RandomFaults(7, **chances))
    assert drawn(RandomFaults(7, **chances)) != drawn(RandomFaults(8, **chances))


def test_random_faults_differ_between_the_two_directions() -> None:
    plan = RandomFaults(7, drop=0.5)
    received = [plan(MessageInTransit("received", number, b"{}")) for number in range(1000)]
    assert received != drawn(plan)


def test_random_fault_of_a_message_does_not_depend_on_the_order_in_which_messages_are_checked() -> None:
    plan = RandomFaults(7, drop=0.5)
    forwards = drawn(plan)
    assert [plan(MessageInTransit("sent", number, b"{}")) for number in reversed(range(1000))] == forwards[::-1]


def test_random_faults_occur_with_the_given_probabilities() -> None:
    chances = {"delay": 0.1, "drop": 0.1, "duplicate": 0.2, "garble": 0.2, "cut": 0.1, "disconnect": 0.1}
    counts = Counter(type(fault).__name__.lower() for fault in drawn(RandomFaults(1, **chances), 10_000))
    for name, chance in chances.items():
        assert counts[name] == pytest.approx(10_000 * chance, rel=0.15)
    assert counts["nonetype"] == pytest.approx(2000, rel=0.15)


def test_random_delay_faults_stay_below_the_maximum_delay() -> None:
    seconds = [fault.seconds for fault in drawn(RandomFaults(1, delay=1, max_delay=3)) if isinstance(fault, Delay)]
    assert len(seconds) == 1000
    assert 0 <= min(seconds) < 0.3
    assert 2.7 < max(seconds) <= 3


def test_random_faults_can_exempt_a_given_number_of_first_messages() -> None:
    assert drawn(RandomFaults(1, drop=1, after=2), 4) == [None, None, Drop(), Drop()]


@pytest.mark.parametrize("wrong", [{"drop": 1.5}, {"drop": -0.1}, {"drop": 0.6, "cut": 0.6}, {"max_delay": -1}])
def test_random_faults_refuse_an_invalid_probability_or_time(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"from 0 to 1|at most 1|>= 0"):
        RandomFaults(1, **wrong)  # type: ignore[arg-type]


def test_fault_that_garbles_more_than_the_whole_message_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Garble(2)


@pytest.mark.parametrize(
    ("message", "method"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', "tools/call"),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled"}', "notifications/cancelled"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', None),
        (b"nonsense", None),
    ],
)
def test_method_attribute_of_a_message_in_transit_is_its_json_rpc_method_or_none(
    message: bytes, method: str | None
) -> None:
    assert MessageInTransit("sent", 0, message).method == method
