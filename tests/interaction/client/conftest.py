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
    "test_client_sends_initialize_if_discover_is_unanswered_after_probe_timeout": _SILENCE,
    "test_unanswered_discover_is_cancelled_after_initialize_succeeds": _SILENCE,
    "test_client_uses_a_late_discover_result_while_initialize_is_unanswered": _SILENCE,
    "test_client_waits_for_slow_discover_result_if_initialize_is_refused": _SILENCE,
    "test_discover_result_after_initialize_is_ignored": _SILENCE,
    "test_client_with_send_cancels_false_does_not_cancel_an_unanswered_discover": _SILENCE,
    "test_call_on_a_lost_connection_fails_immediately_even_if_the_send_queue_is_full": _OUTBOX,
    "test_request_cancelled_before_it_is_written_is_never_sent": _OUTBOX,
    "test_cancel_is_sent_before_queued_requests": _OUTBOX,
    "test_pending_and_later_calls_raise_connection_lost_if_the_connection_is_lost": _LOSS,
    "test_s2c_04_client_ignores_replies_with_unknown_ids_and_uses_the_matching_reply": _OWN_ANSWER,
    "test_std_07_invalid_line_is_reported_and_next_line_is_handled": _OWN_ANSWER,
    "test_exception_in_on_unreadable_callback_does_not_fail_the_call_or_the_next_line": _OWN_ANSWER,
    "test_unreadable_response_without_id_fails_only_the_pending_calls_without_a_timeout": _OWN_ANSWER,
    "test_unreadable_line_that_cannot_be_a_response_fails_no_call": _OWN_ANSWER,
    "test_batch_of_replies_is_accepted_in_revision_2025_03_26": _ONE_ANSWER_EACH,
    "test_client_does_not_answer_a_request_of_the_server_with_an_invalid_id": _UNASKED,
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
