"""The requirements of a server hold through a proxy, too: each test of them runs again, with one on the way, which
reaches the server in memory or over HTTP. Tests with both ends in memory run over HTTP, too."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from tests.interaction import memory_peer
from tests.interaction.by_http import open_by_http, uses
from tests.interaction.covering import cover, first_wire

from trio_mcp import open_memory, proxy

_ITS_OWN: Final = "ids, tokens and the causes of cancels are those of the connection between proxy and server"
_GATES: Final = "a proxy asks nothing that the client did not declare"
_NO_RESULT: Final = "an answer that is no result at all does not get past a proxy: the handler sees an error"
_ONE_ERA: Final = "all requests of one connection reach the server in the era of the first, translated"
_OPENING: Final = "what comes before any opening is refused by the proxy"

DIRECT_ONLY: Final = {
    "test_sa_14_el_18_ro_05_raw_requests_to_a_client_skip_capability_checks_and_decoding": _GATES,
    "test_el_13_invalid_elicitation_answer_raises_protocol_violation": _NO_RESULT,
    "test_roots_answer_that_is_not_json_raises_in_the_handler": _NO_RESULT,
    "test_cx_07_result_of_a_roots_request_is_validated": _NO_RESULT,
    "test_ch_16_each_pending_request_to_the_client_fails_at_end_of_input": _NO_RESULT,
    "test_ca_08_cancel_cause_is_shutdown_after_a_close_and_parent_if_the_server_is_cancelled": _ITS_OWN,
    "test_cx_01_request_id_keeps_value_and_json_type": _ITS_OWN,
    "test_cx_04_request_meta_reaches_the_handler_with_unknown_keys": _ITS_OWN,
    "test_cx_09_concurrent_legacy_and_modern_requests_keep_their_revisions": _ONE_ERA,
    "test_sv_06_require_initialized_refuses_requests_before_initialized": _OPENING,
}
"""Tests of what a server behind a proxy cannot show, and why."""


_HEADERS: Final = "over HTTP there are headers, and the sessions of legacy revisions"
_NO_WORDS: Final = "over HTTP, a modern call is left by closing its answer: cause `disconnect`, no reason"
_CLOSED_BY_CANCEL: Final = "over HTTP, the cancel of a modern call closes its answer: no reply can follow the cancel"
_TOO_SMALL: Final = "no opening fits into messages of this size"
_LISTENING: Final = "the server that listens ends after its client has"
_LARGE: Final = "takes seconds"

NOT_BY_HTTP: Final = {
    "test_cx_02_cx_05_au_03_in_memory_request_has_no_session_headers_or_auth": _HEADERS,
    "test_cx_03_mr_01_modern_requests_are_stateless_and_legacy_requests_are_not": _HEADERS,
    "test_ca_07_only_the_first_cancel_of_a_request_counts_and_all_its_tasks_see_that_cancel": _NO_WORDS,
    "test_cancel_of_a_call_stops_frontend_handler_backend_handler_and_elicitation_with_its_reason": _NO_WORDS,
    "test_handler_is_cancelled_as_soon_as_its_caller_cancels_even_if_the_deadline_is_later": _NO_WORDS,
    "test_proxy_reports_state_relayed_if_its_backend_connection_was_lost_before_the_cancel": _CLOSED_BY_CANCEL,
    "test_ch_14_ch_15_invalid_line_gets_one_error_and_the_connection_stays_open": _TOO_SMALL,
    "test_closed_connection_is_freed_without_garbage_collection": _LISTENING,
    "test_each_of_a_hundred_concurrent_calls_gets_the_answer_to_its_own_elicitation": _LARGE,
}
"""Tests that have no meaning with HTTP between a client of ours and a server of ours, and why."""


@pytest.hookimpl(trylast=True)  # after the scenarios without a counterpart are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one wire of each scenario, or each wire and each era once, unless all of their pairs are wanted."""
    if (wanted := config.getoption("wires")) == "all":
        return
    functions: dict[str, list[pytest.Item]] = {}
    ours = f"{Path(__file__).parent}{os.sep}"  # a comparison of texts: there are thirty thousand items
    for item in items:
        if str(item.path).startswith(ours) and hasattr(item, "callspec"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = set[pytest.Item]()
    for name, runs in functions.items():
        given = [_parameters(item) for item in runs]
        kept = first_wire(given) if wanted == "one" else cover(given, name)
        left.update(set(runs) - {runs[index] for index in kept})
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


def _parameters(item: pytest.Item) -> dict[str, Hashable]:
    """Return the values of eras and wires, which are names, and the places of all others in their lists."""
    call: Any = getattr(item, "callspec")  # noqa: B009 - an item has none in its type
    return {name: value if isinstance(value, str) else call.indices[name] for name, value in call.params.items()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of a requirement, and each with both ends in memory, its ways."""
    name = metafunc.function.__name__
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_requirements_"):
        ways = ["direct"] if name in DIRECT_ONLY else ["direct", "proxied", "proxied by http"]
    elif uses(metafunc.function, open_memory):
        ways = ["direct", "http"]
    else:
        return
    if name in NOT_BY_HTTP:
        ways = [way for way in ways if "http" not in way]
    metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)  # pytest leaves out what no test asks for
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How `memory_peer.connected` reaches a server, and what `open_memory` is for a test."""
    chosen = getattr(request, "param", "direct")
    if chosen == "proxied":
        monkeypatch.setattr(memory_peer, "put_before", lambda server: proxy(partial(open_memory, server)))
    elif chosen == "proxied by http":
        monkeypatch.setattr(memory_peer, "put_before", lambda server: proxy(partial(open_by_http, server)))
    elif chosen == "http":
        monkeypatch.setattr(request.module, "open_memory", open_by_http)
    return chosen
