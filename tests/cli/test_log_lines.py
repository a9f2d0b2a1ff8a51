"""Log lines of commands, on standard error."""

import logging

import pytest

from trio_mcp.cli.printable import log_to_stderr


def not_set_up(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root of a program whose logging was not set up. No fixture: pytest sets up what it finds after those."""
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    return root


def test_log_lines_contain_no_terminal_control_characters_sent_by_a_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    root = not_set_up(monkeypatch)
    log_to_stderr("warning")
    root.error("the server refused: %s", "\x1b]0;mine\x07 \u202eno")
    root.info("too little")
    assert capsys.readouterr().err == "ERROR root: the server refused: \ufffd]0;mine\ufffd \ufffdno\n"


def test_second_call_of_log_to_stderr_does_not_change_the_configured_log_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    root = not_set_up(monkeypatch)
    log_to_stderr("error")
    log_to_stderr("debug")
    root.warning("too little")
    assert capsys.readouterr().err == ""
