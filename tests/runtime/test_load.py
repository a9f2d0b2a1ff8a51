"""The counts of a whole server."""

from __future__ import annotations

from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from trio_mcp.concurrency.fair_share import Caller
from trio_mcp.protocol.methods import METHODS
from trio_mcp.runtime.limits import Limits, Load, Statistics
from trio_mcp.runtime.requests.admission import Admission

COUNTS = {field.name: number for number, field in enumerate(attrs.fields(Statistics), start=1)}


def test_a_server_begins_with_nothing() -> None:
    counts = attrs.asdict(Load(), filter=attrs.filters.exclude("callers"))
    assert counts == dict.fromkeys([field.name for field in attrs.fields(Load) if field.name != "callers"], 0)
    assert attrs.asdict(Load().statistics()) == dict.fromkeys(COUNTS, 0)


def test_statistics_have_each_count_as_it_is_at_the_moment() -> None:
    load = Load(**COUNTS)
    statistics = load.statistics()
    load.in_flight += 1
    assert attrs.asdict(statistics) == COUNTS
    assert load.statistics().in_flight == COUNTS["in_flight"] + 1


def admitted(limits: Limits, load: Load, method: str) -> int:
    """Return how many requests of one client are admitted until one is refused."""
    admission, caller = Admission[Any](limits, load), Caller(alone=True)
    request: Any = SimpleNamespace(size=0, method=METHODS[method])
    return len(list(takewhile(bool, (admission.admit(request, caller) for _ in range(100)))))


@pytest.mark.parametrize("field", ["in_flight", "queued", "parked"])
def test_whatever_a_request_does_it_takes_one_of_those_the_server_may_have(field: str) -> None:
    limits = Limits(max_server_requests=10, max_server_streams=5)
    assert admitted(limits, Load(**{field: 3}), "tools/call") == 7
    assert admitted(limits, Load(**{field: 3}), "subscriptions/listen") == 5


def test_streams_take_their_own() -> None:
    limits = Limits(max_server_requests=10, max_server_streams=5)
    assert admitted(limits, Load(listening=3), "tools/call") == 10
    assert admitted(limits, Load(listening=3), "subscriptions/listen") == 2


def test_counts_are_the_same_by_identity_alone() -> None:
    assert Load() != Load()
