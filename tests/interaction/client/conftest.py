"""What the scenarios of a client against a server in another process are run over: transport by era."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.interaction.by_http import uses
from tests.interaction.client import asking
from tests.interaction.client.http_front import open_client_by_http
from tests.interaction.client.raw import RawServer, Serve

from trio_mcp.client.opening import open_client


@pytest.fixture(params=("stdio", "websocket", "http"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=("legacy", "modern"))
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def serve_raw(transport: str, tmp_path: Path) -> Serve:
    """A raw server that runs a program, over the transport."""
    return partial(RawServer, tmp_path, transport=transport)


_SILENCE: Final = "over HTTP, silence says nothing of the era"
_OUTBOX: Final = "requests over HTTP wait in no outbox: each has a connection of its own"
_LOSS: Final = "there is no connection to lose: a call without an answer fails by itself, with HTTPError"
_OWN_ANSWER: Final = "what cannot be read in the answer of a call is for that call, which fails"
_ONE_ANSWER_EACH: Final = "a reply goes out in the answer of its own POST, never with the replies of others"
_UNASKED: Final = "what cannot be read on a stream that belongs to no request is logged, and not counted"

NOT_BY_HTTP: Final = {
    "test_silence_leads_to_the_handshake_after_the_probe_timeout": _SILENCE,
    "test_the_unanswered_question_is_cancelled_once_the_handshake_is_done": _SILENCE,
    "test_a_late_discovery_still_counts_while_the_handshake_is_unanswered": _SILENCE,
    "test_a_slow_modern_server_that_refuses_initialize_is_waited_for": _SILENCE,
    "test_a_discovery_after_the_handshake_changes_nothing": _SILENCE,
    "test_a_question_left_unanswered_at_the_opening_is_not_cancelled": _SILENCE,
    "test_a_call_fails_although_the_dead_connection_still_has_a_full_outbox": _OUTBOX,
    "test_a_request_that_still_waits_in_the_outbox_is_withdrawn_without_a_trace": _OUTBOX,
    "test_a_cancel_goes_ahead_of_the_requests_that_wait": _OUTBOX,
    "test_a_connection_that_dies_fails_its_calls_plainly_and_cancels_nobody": _LOSS,
    "test_s2c_04_replies_that_name_no_call_settle_nobody_and_the_true_one_still_works": _OWN_ANSWER,
    "test_std_07_a_line_that_is_no_message_is_reported_and_the_next_is_handled": _OWN_ANSWER,
    "test_a_callback_that_fails_costs_neither_the_call_nor_the_next_line": _OWN_ANSWER,
    "test_an_answer_that_names_nobody_fails_those_that_would_wait_for_ever": _OWN_ANSWER,
    "test_what_may_be_no_answer_at_all_fails_no_call": _OWN_ANSWER,
    "test_a_batch_of_replies_is_understood_where_the_revision_has_batches": _ONE_ANSWER_EACH,
    "test_a_request_without_a_usable_id_is_not_answered": _UNASKED,
}
"""Scenarios of a scripted server that have no meaning over HTTP, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of a scripted server its ways."""
    if uses(metafunc.function, open_client):
        ways = ["direct"] if metafunc.function.__name__ in NOT_BY_HTTP else ["direct", "http"]
        metafunc.parametrize("reached", ways, indirect=True)


@pytest.fixture(autouse=True)  # pytest leaves out what no test asks for
def reached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the client of a scripted server reaches the other end of its channel."""
    chosen = getattr(request, "param", "direct")
    if chosen == "http":
        for module in (request.module, asking):
            if hasattr(module, "open_client"):
                monkeypatch.setattr(module, "open_client", open_client_by_http)
    return chosen
