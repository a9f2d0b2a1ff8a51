"""What is kept of a text that goes by."""

from __future__ import annotations

import io

import pytest

from trio_mcp.transports.process import LastLines


def kept(*pieces: str) -> tuple[str, ...]:
    tail = LastLines()
    for piece in pieces:
        tail.write(piece)
    return tail.lines


def test_stored_output_line_is_complete_if_the_process_writes_it_in_pieces() -> None:
    assert kept("on", "e\ntw", "o\r\n", "three") == ("one", "two", "three")


def test_blank_lines_of_process_output_are_not_stored() -> None:
    assert kept("one\n\n   \n", "\n", "two\n") == ("one", "two")


@pytest.mark.parametrize("end", ["", "\n"])
def test_last_twenty_lines_of_process_output_are_stored(end: str) -> None:
    assert kept("\n".join(map(str, range(100))) + end) == tuple(map(str, range(80, 100)))


@pytest.mark.parametrize("piece", [1, 300, 2000])
def test_first_500_characters_of_a_long_line_of_process_output_are_stored(piece: int) -> None:
    text = "first " + "x" * 1500 + "\nlast"
    assert kept(*(text[at : at + piece] for at in range(0, len(text), piece))) == (text[:500], "last")


def test_stored_process_output_is_also_written_to_the_given_stream() -> None:
    copy = io.StringIO()
    tail = LastLines(copy)
    tail.write("a" * 1000)
    tail.write("\nb")
    assert copy.getvalue() == "a" * 1000 + "\nb"


def test_line_of_process_output_is_stored_even_if_the_given_stream_raises() -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError("no space left on device")

    tail = LastLines(Full())
    with pytest.raises(OSError, match="no space"):
        tail.write("said\n")
    assert tail.lines == ("said",)
