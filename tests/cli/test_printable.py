"""Text from a server is made safe for a terminal."""

import pytest

from trio_mcp.cli.printable import name_shown, on_one_line, printable


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
        ("葛\U000e0100 ❤\ufe0f می\u200cخواهم", "葛\U000e0100 ❤\ufe0f می\u200cخواهم"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("no\u200bthing\u2060 \ufeffhere", "no\\u200bthing\\u2060 \\ufeffhere"),
        ("hidden \U000e0041\U000e007f", "hidden \\U000e0041\\U000e007f"),
    ],
)
def test_text_made_printable_contains_no_terminal_control_characters(text: str, shown: str):
    assert printable(text) == shown


def test_one_line_summary_is_the_first_nonempty_line_up_to_the_limit():
    assert on_one_line("\n\n  hello  \nworld") == "hello"
    assert on_one_line("abcdef", limit=4) == "abc…"
    assert on_one_line(" \n ") == ""
    assert on_one_line("first\u2028second") == "first\\u2028second"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("get_weather-2.1/x", "get_weather-2.1/x"),
        ("Wetter für 東京 ❤", "Wetter für 東京 ❤"),
        ("read\u200b_file", "read\\u200b_file"),
        ("read\u200d_file\ufe0f", "read\\u200d_file\\ufe0f"),
        ("soft\xadhyphen\xa0space", "soft\\xadhyphen\\xa0space"),
        ("one\ntwo\u2028three\x85", "one\\ntwo\\u2028three\\x85"),
        ("bell\x07 \x1b[2J", "bell\\x07 \\x1b[2J"),
        ("txt\u202eexe \ud800", "txt\\u202eexe \\ud800"),
        ("filler\u3164 \u2800 \U000e0100 \U000e0061", "filler\\u3164 \\u2800 \\U000e0100 \\U000e0061"),
    ],
)
def test_invisible_characters_in_names_are_shown_as_escapes(name: str, shown: str):
    assert name_shown(name) == shown


def test_long_names_are_truncated_before_they_are_printed():
    assert name_shown("abcdef", limit=4) == "abc…"
    assert name_shown("\u200b" * 1_000_000, limit=10) == "\\u200b\\u2…"
