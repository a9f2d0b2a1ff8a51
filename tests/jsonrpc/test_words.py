"""Text from peers in errors and log records has no control characters."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.state.peers import client_of

from trio_mcp import ConnectionLost, HTTPError, MCPError, PeerError, ProtocolViolation, TaskCancelled
from trio_mcp.auth import AuthorizationError
from trio_mcp.jsonrpc.errors import CodedError, UnreadableAnswer, clean
from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.protocol.converters import structure
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.protocol.types.content import TextContent
from trio_mcp.state.events import Ignored
from trio_mcp.transports.process import LastLines

NASTY = "red \x1b[31m\r\nforged: line\x00\x85\x9b31m\u2028\u2029\u202e\ud800 häh"
FORBIDDEN = frozenset("\x1b\r\n\x00\x85\x9b\u2028\u2029\u202e\ud800")


@given(st.text())
def test_unprintable_characters_in_error_text_are_replaced_one_by_one(text: str) -> None:
    words = clean(text)
    assert words.isprintable()
    assert len(words) == len(text)
    assert all(word in (given, " ", "\N{REPLACEMENT CHARACTER}") for word, given in zip(words, text, strict=True))
    assert clean(words) == words


def test_control_characters_in_error_text_become_replacement_characters() -> None:
    assert clean("a\tb\r\nc\u2028d\x1b[31m\x9b") == "a b  c d\ufffd[31m\ufffd"


@pytest.mark.parametrize(
    "error",
    [
        HTTPError(502, NASTY, NASTY),
        HTTPError._refused(502, NASTY),
        ConnectionLost(NASTY),
        ProtocolViolation(NASTY),
        UnreadableAnswer(NASTY),
        AuthorizationError(NASTY),
        PeerError(-32000, NASTY),
        CodedError(-32000, NASTY),
        TaskCancelled("t", NASTY),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_text_has_no_control_characters(error: MCPError) -> None:
    for one in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert not FORBIDDEN & set(str(one))
        assert "häh" in str(one)


def test_peer_error_keeps_the_received_message_unchanged() -> None:
    assert PeerError(-32000, NASTY).message == NASTY


def test_last_stderr_lines_are_made_printable_but_the_stderr_file_gets_them_unchanged() -> None:
    class Sink:
        text = ""

        def write(self, text: str, /) -> None:
            self.text += text

    sink = Sink()
    lines = LastLines(sink)
    lines.write("\x1b[31mred\x1b[0m\nun\x9bfinished")
    assert lines.lines == ("\ufffd[31mred\ufffd[0m", "un\ufffdfinished")
    assert sink.text == "\x1b[31mred\x1b[0m\nun\x9bfinished"


@pytest.mark.parametrize("params", [None, []])
def test_name_of_an_unknown_notification_is_made_printable_in_the_log(params: object) -> None:
    event = client_of(LATEST_LEGACY).receive(Notification(f"x{NASTY}", params))
    assert isinstance(event, Ignored)
    assert not FORBIDDEN & set(event.reason)


def test_validation_error_of_params_contains_no_control_characters() -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        structure({"type": "text", "text": 5, "annotations": {"audience": [NASTY]}}, TextContent)
    assert not FORBIDDEN & set(str(caught.value))
