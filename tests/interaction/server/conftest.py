"""What the scenarios of a server in another process are run over: transport by era. ``bridged`` is stdio through
``trio-mcp bridge``, which starts the server itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.interaction.raw_client import ERAS, RawClient, Start, serving

_REFUSED: Final = "HTTP answers senseless messages: 400"
_UNTOLD: Final = "the end of an answer is the cancel, and has no reason"
_CLOSED: Final = "a modern cancel closes an answer: where none is open, or no request is named, there is none"
_APART: Final = "modern POSTs are clients of their own: their ids never meet"
_NEEDS_SESSION: Final = "what comes before `initialize` has no session: 400"
_PER_CONNECTION: Final = "requests share no connection that could pause or be counted on"
_ENDING: Final = "a server that ends takes no new connection"
_STAYS: Final = "whom nothing connects cannot go away: sessions and parked handlers stay until their time is over"
_MANY: Final = "as many connections take too long: see tests/serving/http/test_leaks.py"

WITHOUT_COUNTERPART: Final = {
    "test_s2c_04_a_senseless_reply_ends_the_wait_of_whom_it_is_meant_for": _REFUSED,
    "test_s2c_04_replies_that_name_no_question_settle_nobody": _REFUSED,
    "test_can_05_": _CLOSED,
    "test_s2c_01_cancel_between_the_rounds_reaches_the_handler": _CLOSED,
    "test_can_01_reason_and_cause_reach_the_handler[http-2026-07-28]": _UNTOLD,
    "test_rpc_02_id_of_a_cancelled_request_is_free_while_it_cleans_up[http-2026-07-28]": _UNTOLD,
    "test_rpc_02_id_in_flight_is_refused_and_the_first_is_untouched[http-2026-07-28]": _APART,
    "test_the_id_of_an_open_stream_is_refused_and_the_stream_goes_on": _APART,
    "test_api_03_request_before_initialize_gets_a_clean_error": _NEEDS_SESSION,
    "test_s2c_05_tasks_return_to_their_number_after_questions_end_in_every_way": _PER_CONNECTION,
    "test_can_16_busy_worker_threads": _PER_CONNECTION,
    "test_client_that_sends_and_never_reads_is_held_up_and_memory_stays_bounded": _PER_CONNECTION,
    "test_shd_01_sigterm_refuses_new_work_finishes_short_work_and_cancels_long_work": _ENDING,
    "test_shd_01_question_of_a_draining_handler_can_still_be_answered": _ENDING,
    "test_server_without_a_free_descriptor_serves_on_and_accepts_again_when_there_is_one": _PER_CONNECTION,
    "test_s2c_05_client_that_goes_away_ends_what_waits_for_it_and_nothing_else": _STAYS,
    "test_s2c_05_a_client_that_vanishes_between_the_rounds_leaves_nothing": _STAYS,
    "test_bpl_06_clients_that_vanish_leave_nothing_behind": _STAYS,
    "test_bpl_04_ten_thousand_calls_leave_nothing_behind": _MANY,
    "test_bpl_04_refusals_and_nonsense_leave_nothing_behind": _MANY,
}
"""Beginnings of the scenarios that have no meaning over HTTP, and why."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours, over_http = Path(__file__).parent, tuple(WITHOUT_COUNTERPART)
    items[:] = [
        item
        for item in items
        if not (item.path.parent == ours and "[http" in item.name and item.name.startswith(over_http))
    ]


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
