"""The requirements of a server hold through a proxy, too: each test of them runs a second time, with one on the way."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from tests.interaction import memory_peer

from trio_mcp import open_memory, proxy

_ITS_OWN: Final = "ids, tokens and the causes of cancels are those of the connection between proxy and server"
_GATES: Final = "a proxy asks nothing that the client did not declare"
_NO_RESULT: Final = "an answer that is no result at all does not get past a proxy: the handler sees an error"
_ONE_ERA: Final = "all requests of one connection reach the server in the era of the first, translated"
_OPENING: Final = "what comes before any opening is refused by the proxy"

DIRECT_ONLY: Final = {
    "test_sa_14_el_18_ro_05_raw_forms_have_no_gates_and_no_types": _GATES,
    "test_el_13_answer_that_does_not_fit_is_a_violation": _NO_RESULT,
    "test_an_answer_that_is_not_json_fails_the_question_and_is_not_answered": _NO_RESULT,
    "test_cx_07_result_of_a_question_is_validated_against_its_type": _NO_RESULT,
    "test_ch_16_end_of_input_fails_every_question_once": _NO_RESULT,
    "test_ca_08_disconnect_and_shutdown_are_named_as_causes": _ITS_OWN,
    "test_cx_01_request_id_is_that_of_the_wire_with_its_type": _ITS_OWN,
    "test_cx_04_meta_reaches_the_handler_with_every_unknown_key": _ITS_OWN,
    "test_cx_09_concurrent_requests_of_different_eras_keep_their_revisions": _ONE_ERA,
    "test_sv_06_handshake_can_be_insisted_on": _OPENING,
}
"""Tests of what a server behind a proxy cannot show, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of a requirement its ways."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_requirements_"):
        ways = ["direct"] if metafunc.function.__name__ in DIRECT_ONLY else ["direct", "proxied"]
        metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)  # pytest leaves out what no test asks for
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How `memory_peer.connected` reaches a server."""
    chosen = getattr(request, "param", "direct")
    if chosen == "proxied":
        monkeypatch.setattr(memory_peer, "put_before", lambda server: proxy(partial(open_memory, server)))
    return chosen
