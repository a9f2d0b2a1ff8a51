"""trio-mcp's client is asked by a server written with 2.x of the TypeScript SDK, from one text for both eras.

Its handlers answer with ``inputRequired``. To a modern client that goes out as it is; to a legacy one the SDK sends
requests, and runs the handler again with the answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.peers.conversations import Conversation, conversation
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal

from trio_mcp import CodedError, ProtocolViolation, open_http, open_stdio

PEERS = [("legacy", "stdio"), ("legacy", "http"), ("modern", "stdio"), ("modern", "http")]
only_legacy = pytest.mark.parametrize("peer", PEERS[:2], indirect=True, ids="-".join)
only_modern = pytest.mark.parametrize("peer", PEERS[2:], indirect=True, ids="-".join)


@pytest.fixture(scope="module", params=PEERS, ids="-".join)
def peer(
    request: pytest.FixtureRequest, scripts: Path, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    era, over = request.param
    command = ["node", str(scripts / "asking_server.mjs")]
    if over == "http":
        running = over_http.get("2", command)
        with conversation("2", era, running.journal, partial(open_http, running.url), over) as talk:
            yield talk
        return
    journal = Journal(tmp_path_factory.mktemp("typescript") / "journal")
    opens = partial(open_stdio, command, env=journal.env)
    with conversation("2", era, journal, opens) as talk:
        yield talk
    assert journal.lines[-1] == "server ended"


def test_client_answers_elicitation_sampling_and_roots_that_are_requested_together(peer: Conversation) -> None:
    """The user's handler names a colour only: the size is the default of the form."""
    before = len(peer.journal.lines)
    assert peer.text("all_at_once") == "green 40, forty-two, file:///home/pilot"
    assert peer.elicitations[-1].message == "Which shirt?"
    assert peer.samplings[-1].messages[0].content.text == "A slogan?"
    assert peer.journal.lines[before:] == ["all_at_once asks", "all_at_once has answers"]


def test_request_state_is_kept_while_the_server_requests_elicitation_and_then_sampling(peer: Conversation) -> None:
    assert peer.text("one_after_another") == "green, forty-two"
    assert peer.samplings[-1].messages[0].content.text == "Name a green shirt."


def test_client_handler_answers_a_url_elicitation(peer: Conversation) -> None:
    assert peer.text("send_user") == "accept"
    assert peer.visits[-1].url == "https://example.com/sign-in"


def test_client_answers_an_elicitation_from_a_prompt_handler_during_get_prompt(peer: Conversation) -> None:
    (message,) = peer.run(peer.client.get_prompt, "greet").messages
    assert message.content.text == "a green greeting"


def test_client_answers_a_roots_request_from_a_resource_handler_during_read_resource(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "places://all").contents
    assert contents.text == "file:///home/pilot"


def test_client_retries_an_input_required_result_with_the_request_state(peer: Conversation) -> None:
    assert peer.text("count_to_five") == "there"


@only_modern
def test_client_stops_after_32_input_required_results_for_one_call(peer: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match="more than 32 times"):
        peer.call("insatiable")
    assert peer.text("send_user") == "accept"


@only_legacy
def test_typescript_server_stops_a_call_in_a_legacy_revision_that_requests_input_more_than_8_times(
    peer: Conversation,
) -> None:
    result = peer.call("insatiable")
    assert result.is_error
    assert "still required input after 8 rounds" in result.text


@only_modern
def test_error_in_the_elicitation_handler_fails_only_the_call_that_elicits(peer: Conversation) -> None:
    with pytest.raises(CodedError, match="the user said no") as caught:
        peer.call("rude")
    assert caught.value.code == -1
    assert peer.text("send_user") == "accept"


@only_legacy
def test_legacy_server_returns_an_error_result_if_the_elicitation_handler_of_the_client_fails(
    peer: Conversation,
) -> None:
    result = peer.call("rude")
    assert result.is_error
    assert "the user said no" in result.text
