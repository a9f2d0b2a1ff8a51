"""Text of others, on its way to a terminal."""

import pytest

from trio_mcp.cli.terminal.plain import on_one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("red \x1b[31m and bell \x07", "red \ufffd[31m and bell \ufffd"),
        ("one\r\ntwo\tthree\rfour", "one\ntwo\tthree\ufffdfour"),
        ("\x9b2J", "\ufffd2J"),
        ("abc\u202edcba", "abc\ufffddcba"),
        ("abc\u061c1", "abc\ufffd1"),
        ("half \ud800", "half \ufffd"),
        ("Zürich, 東京, 👩\u200d🚀", "Zürich, 東京, 👩\u200d🚀"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str, shown: str):
    assert printable(text) == shown


def test_one_line_is_the_first_that_says_something_and_no_longer_than_asked():
    assert on_one_line("\n\n  hello  \nworld") == "hello"
    assert on_one_line("abcdef", most=4) == "abc…"
    assert on_one_line(" \n ") == ""
