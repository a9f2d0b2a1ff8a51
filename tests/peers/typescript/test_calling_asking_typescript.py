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


def test_an_elicitation_a_sampling_and_a_roots_question_at_once_are_answered(peer: Conversation) -> None:
    """The user's handler names a colour only: the size is the default of the form."""
    before = len(peer.journal.lines)
    assert peer.text("all_at_once") == "green 40, forty-two, file:///home/pilot"
    assert peer.elicitations[-1].message == "Which shirt?"
    assert peer.samplings[-1].messages[0].content.text == "A slogan?"
    assert peer.journal.lines[before:] == ["all_at_once asks", "all_at_once has answers"]


def test_questions_in_a_row_are_answered_and_the_state_comes_back_as_it_was(peer: Conversation) -> None:
    assert peer.text("one_after_another") == "green, forty-two"
    assert peer.samplings[-1].messages[0].content.text == "Name a green shirt."


def test_user_is_sent_to_a_url(peer: Conversation) -> None:
    assert peer.text("send_user") == "accept"
    assert peer.visits[-1].url == "https://example.com/sign-in"


def test_a_prompt_that_asks_is_answered(peer: Conversation) -> None:
    (message,) = peer.run(peer.client.get_prompt, "greet").messages
    assert message.content.text == "a green greeting"


def test_a_resource_that_asks_is_answered(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "places://all").contents
    assert contents.text == "file:///home/pilot"


def test_a_server_that_asks_to_be_called_again_is_called_again_with_its_state(peer: Conversation) -> None:
    assert peer.text("count_to_five") == "there"


@only_modern
def test_a_server_that_asks_for_ever_is_left(peer: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match="more than 32 times"):
        peer.call("insatiable")
    assert peer.text("send_user") == "accept"


@only_legacy
def test_a_server_that_asks_for_ever_gives_up_by_itself(peer: Conversation) -> None:
    result = peer.call("insatiable")
    assert result.is_error
    assert "still required input after 8 rounds" in result.text


@only_modern
def test_a_user_who_says_no_ends_the_call_and_nothing_else(peer: Conversation) -> None:
    with pytest.raises(CodedError, match="the user said no") as caught:
        peer.call("rude")
    assert caught.value.code == -1
    assert peer.text("send_user") == "accept"


@only_legacy
def test_a_user_who_says_no_ends_the_call_of_a_legacy_server_with_its_words(peer: Conversation) -> None:
    result = peer.call("rude")
    assert result.is_error
    assert "the user said no" in result.text
