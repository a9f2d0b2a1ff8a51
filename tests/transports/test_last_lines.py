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


def test_lines_may_come_in_pieces() -> None:
    assert kept("on", "e\ntw", "o\r\n", "three") == ("one", "two", "three")


def test_blank_lines_mean_nothing() -> None:
    assert kept("one\n\n   \n", "\n", "two\n") == ("one", "two")


@pytest.mark.parametrize("end", ["", "\n"])
def test_only_the_last_twenty_are_kept(end: str) -> None:
    assert kept("\n".join(map(str, range(100))) + end) == tuple(map(str, range(80, 100)))


@pytest.mark.parametrize("piece", [1, 300, 2000])
def test_of_a_long_line_its_beginning_is_kept(piece: int) -> None:
    text = "first " + "x" * 1500 + "\nlast"
    assert kept(*(text[at : at + piece] for at in range(0, len(text), piece))) == (text[:500], "last")


def test_all_of_it_is_copied() -> None:
    copy = io.StringIO()
    tail = LastLines(copy)
    tail.write("a" * 1000)
    tail.write("\nb")
    assert copy.getvalue() == "a" * 1000 + "\nb"


def test_a_copy_that_fails_takes_nothing_away() -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError("no space left on device")

    tail = LastLines(Full())
    with pytest.raises(OSError, match="no space"):
        tail.write("said\n")
    assert tail.lines == ("said",)
