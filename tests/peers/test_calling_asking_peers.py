"""trio-mcp's client is asked by servers of people's real software, in child processes.

The official server declares what it needs to know, and the package asks: in requests of its own in the legacy era,
and by ``InputRequiredResult`` in the modern one. Over stdio one child per peer and era serves all tests of this file,
over HTTP one per peer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.peers.conversations import Conversation, conversation
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal

from trio_mcp import CodedError, ProtocolViolation, open_http, open_stdio

SERVERS = Path(__file__).parent / "servers"
PEERS = [
    pytest.param((name, era, over), id=f"{name}-{era}-{over}")
    for name, era in (("official", "legacy"), ("official", "modern"), ("fastmcp", "modern"))
    for over in ("stdio", "http")
]
only_official = pytest.mark.parametrize("peer", PEERS[:4], indirect=True)
only_official_modern = pytest.mark.parametrize("peer", PEERS[2:4], indirect=True)


@pytest.fixture(scope="module", params=PEERS)
def peer(
    request: pytest.FixtureRequest, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    name, era, over = request.param
    command = [sys.executable, str(SERVERS / f"{name}_asking_server.py")]
    if over == "http":
        running = over_http.get(name, command)
        with conversation(name, era, running.journal, partial(open_http, running.url), over) as talk:
            yield talk
        return
    journal = Journal(tmp_path_factory.mktemp(name) / era)
    with conversation(name, era, journal, partial(open_stdio, command, env=journal.env)) as talk:
        yield talk
    assert journal.lines[-1] == "server ended"


def _asks_for_all(peer: Conversation, tool: str, prompt: str) -> None:
    """The user's handler names a colour only: the size is the default of the form."""
    asked, before = len(peer.samplings), len(peer.journal.lines)
    assert peer.text(tool) == "green 40, forty-two, file:///home/pilot"
    assert peer.elicitations[-1].message == "Which shirt?"
    assert [params.messages[0].content.text for params in peer.samplings[asked:]] == [prompt]
    assert peer.journal.lines[before:] == [f"{tool} ran"]


def test_client_answers_elicitation_sampling_and_roots_that_are_requested_together(peer: Conversation) -> None:
    _asks_for_all(peer, "all_at_once", "A slogan?")


@only_official
def test_client_answers_elicitation_sampling_and_roots_that_are_requested_one_after_another(peer: Conversation) -> None:
    _asks_for_all(peer, "one_after_another", "Name a green shirt.")


@only_official_modern
def test_client_answers_an_elicitation_from_a_prompt_handler_during_get_prompt(peer: Conversation) -> None:
    (message,) = peer.run(peer.client.get_prompt, "greet").messages
    assert message.content.text == "greeting to {'colour': 'green', 'size': 40}"


@only_official_modern
def test_client_answers_a_roots_request_from_a_resource_handler_during_read_resource(peer: Conversation) -> None:
    (contents,) = peer.run(peer.client.read_resource, "places://0").contents
    assert contents.text == "file:///home/pilot"


@only_official_modern
def test_client_retries_an_input_required_result_with_the_request_state(peer: Conversation) -> None:
    assert peer.text("count_to", last=5) == "there"


@only_official_modern
def test_client_stops_after_32_input_required_results_for_one_call(peer: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match="more than 32 times"):
        peer.call("count_to", last=1000)
    assert peer.text("count_to", last=1) == "there"


@only_official_modern
def test_error_in_the_elicitation_handler_fails_only_the_call_that_elicits(peer: Conversation) -> None:
    with pytest.raises(CodedError, match="the user said no") as caught:
        peer.call("rude")
    assert caught.value.code == -1
    assert peer.text("count_to", last=1) == "there"
