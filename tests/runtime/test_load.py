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

OF_LINKS = {"replica_messages": 1, "round_trips": 2, "reconnects": 3, "hints_lost": 4, "uncertain": 5}
COUNTS = {
    field.name: number for number, field in enumerate(attrs.fields(Statistics), start=6) if field.name not in OF_LINKS
}


class Linked:
    """A link, and its letters, with counts of their own."""

    def __init__(self, **counts: int) -> None:
        self.__dict__.update(counts)
        self.sent_count = counts["replica_messages"]
        self.is_up = True


def test_statistics_of_a_new_server_are_zero() -> None:
    parts = {"callers", "links"}
    counts = attrs.asdict(Load(), filter=attrs.filters.exclude(*parts))
    assert counts == dict.fromkeys([field.name for field in attrs.fields(Load) if field.name not in parts], 0)
    assert attrs.asdict(Load().statistics()) == dict.fromkeys([*COUNTS, *OF_LINKS], 0)


def test_server_statistics_show_the_current_counts() -> None:
    load = Load(**COUNTS)
    link: Any = Linked(**OF_LINKS)
    with load.links.counting(link, lambda: link.sent_count):
        statistics = load.statistics()
        load.in_flight += 1
        link.hints_lost += 1
        assert attrs.asdict(statistics) == {**COUNTS, **OF_LINKS}
        assert load.statistics().in_flight == COUNTS["in_flight"] + 1
        assert load.statistics().hints_lost == OF_LINKS["hints_lost"] + 1


def test_storage_counters_are_summed_and_kept_after_a_storage_closes() -> None:
    load = Load()
    first, second = (Linked(**OF_LINKS) for _ in range(2))
    for link in (first, second):
        linked: Any = link
        with load.links.counting(linked, lambda link=link: link.sent_count):
            link.hints_lost = 7
    one: Any = first
    other: Any = second
    with load.links.counting(one, lambda: one.sent_count), load.links.counting(other, lambda: other.sent_count):
        assert load.statistics().hints_lost == 4 * 7
        assert load.statistics().replica_messages == 4
    assert load.statistics().hints_lost == 4 * 7


def test_storage_status_is_up_only_if_all_storages_are_up_and_is_none_without_storages() -> None:
    links = Load().links
    one: Any = Linked(**OF_LINKS)
    other: Any = Linked(**OF_LINKS)
    with links.counting(None, lambda: other.sent_count):
        assert links.is_up is None
        with links.counting(one, lambda: one.sent_count), links.counting(other, lambda: other.sent_count):
            assert links.is_up is True
            other.is_up = False
            assert links.is_up is False
        assert links.is_up is None


def admitted(limits: Limits, load: Load, method: str) -> int:
    """Return how many requests of one client are admitted until one is refused."""
    admission, caller = Admission[Any](limits, load), Caller(alone=True)
    request: Any = SimpleNamespace(size=0, method=METHODS[method])
    return len(list(takewhile(bool, (admission.admit(request, caller) for _ in range(100)))))


@pytest.mark.parametrize("field", ["in_flight", "queued", "parked"])
def test_queued_running_and_waiting_requests_all_count_towards_the_server_limit(field: str) -> None:
    limits = Limits(max_server_requests=10, max_server_streams=5)
    assert admitted(limits, Load(**{field: 3}), "tools/call") == 7
    assert admitted(limits, Load(**{field: 3}), "subscriptions/listen") == 5


def test_listen_streams_count_towards_the_server_stream_limit() -> None:
    limits = Limits(max_server_requests=10, max_server_streams=5)
    assert admitted(limits, Load(listening=3), "tools/call") == 10
    assert admitted(limits, Load(listening=3), "subscriptions/listen") == 2


def test_load_objects_with_equal_counts_are_not_equal() -> None:
    assert Load() != Load()
