"""What the scenarios of a server in another process are run over: transport by era. ``bridged`` is stdio through
``trio-mcp bridge``, which starts the server itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.interaction.raw_client import ERAS, RawClient, Start, serving

_OVER_HTTP = frozenset(("test_asking", "test_cancellation", "test_progress", "test_waiting"))
"""Modules whose scenarios are run over Streamable HTTP, too. Those about lines and their order have no counterpart."""
_OF_CONNECTIONS = (
    "test_s2c_04_a_senseless_reply_ends_the_wait_of_whom_it_is_meant_for",  # HTTP refuses it: 400
    "test_s2c_04_replies_that_name_no_question_settle_nobody",  # 400, too
    "test_s2c_05_tasks_return_to_their_number_after_questions_end_in_every_way",  # a connection of HTTP is a task
    "test_can_01_reason_and_cause_reach_the_handler[http-2026-07-28]",  # the end of the answer has no reason
    "test_can_05_",  # there is no cancel in the modern era, and senseless ones are refused in the other
    "test_can_16_busy_worker_threads",  # how many places there are depends on the transport
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if "[http" not in item.name or _has_meaning_over_http(item)]


def _has_meaning_over_http(item: pytest.Item) -> bool:
    return item.path.parent != Path(__file__).parent or (
        item.path.stem in _OVER_HTTP and not item.name.startswith(_OF_CONNECTIONS)
    )


@pytest.fixture(params=("stdio", "websocket", "bridged", "http"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(transport: str, tmp_path: Path) -> Start:
    """Start the fixture server and connect to it over the transport."""
    return partial(serving, tmp_path, transport, forked=True)


@pytest.fixture
def client(start: Start, era: str) -> Iterator[RawClient]:
    """The client of a fixture server, in every era over every transport."""
    with start(revision=era) as client:
        yield client
