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
    "test_s2c_04_sampling_request_raises_if_its_reply_is_malformed": _REFUSED,
    "test_s2c_04_replies_with_unknown_ids_do_not_answer_a_pending_sampling_request": _REFUSED,
    "test_can_05_": _CLOSED,
    "test_s2c_01_cancel_stops_a_handler_that_awaits_input": _CLOSED,
    "test_can_01_handler_can_read_reason_and_cause_of_its_cancel[http-2026-07-28]": _UNTOLD,
    "test_rpc_02_id_of_cancelled_request_can_be_reused_during_its_cleanup[http-2026-07-28]": _UNTOLD,
    "test_rpc_02_request_with_an_id_in_flight_is_refused_and_the_first_request_continues[http-2026-07-28]": _APART,
    "test_request_with_the_id_of_an_open_listen_stream_is_refused_and_the_stream_continues": _APART,
    "test_api_03_request_before_initialize_is_refused": _NEEDS_SESSION,
    "test_s2c_05_server_has_no_leftover_tasks_after_answered_refused_and_cancelled_requests": _PER_CONNECTION,
    "test_can_16_busy_worker_threads": _PER_CONNECTION,
    "test_server_stops_reading_from_a_client_that_never_reads_and_memory_stays_bounded": _PER_CONNECTION,
    "test_shd_01_server_after_sigterm_refuses_new_requests_finishes_short_and_cancels_long_requests": _ENDING,
    "test_shd_01_client_can_answer_a_roots_request_of_a_running_call_after_sigterm_of_the_server": _ENDING,
    "test_server_that_runs_out_of_file_descriptors_continues_and_accepts_connections_later": _PER_CONNECTION,
    "test_s2c_05_client_that_vanishes_fails_only_handlers_that_wait_for_that_client": _STAYS,
    "test_s2c_05_handler_that_awaits_input_ends_when_its_client_vanishes": _STAYS,
    "test_bpl_06_server_leaks_no_memory_and_uses_no_cpu_after_clients_vanish": _STAYS,
    "test_bpl_04_server_leaks_no_memory_threads_or_descriptors_in_ten_thousand_calls": _MANY,
    "test_bpl_04_server_leaks_no_memory_after_malformed_messages": _MANY,
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
