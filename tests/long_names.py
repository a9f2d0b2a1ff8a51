"""Long names of odd letters, and a look at what the codecs of names, which take the square of the length, are given."""

from __future__ import annotations

import encodings.idna
import unicodedata
from typing import Any

import pytest

ODD = "\u0315\u0300\u0591"
"""Marks whose order depends on each other: the slowest letters for `unicodedata.normalize`."""
LONGEST = 253 + len(".:65535")


def given_to_codecs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of all texts that are written as names of hosts from now on, as they come."""
    lengths = list[int]()

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any) -> Any:
            lengths.append(len(args[-1]))
            return function(*args)

        monkeypatch.setattr(module, name, watched)

    watch(encodings.idna, "nameprep")
    watch(unicodedata, "normalize")
    return lengths
