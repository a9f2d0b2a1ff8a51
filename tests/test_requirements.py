"""What tests cite of `tests/requirements.md` is there, and what that file says of tests is true."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = TESTS / "requirements.md"

ID = r"[A-Z][A-Z0-9]{1,3}-\d\d"
IN_TEXT = re.compile(rf"(?<![\w-])({ID})(?: to ({ID}))?(?![\w-])")
IN_NAMES = re.compile(r"\btest_([a-z][a-z0-9]{1,3}_\d\d_(?:(?:(?:to_)?[a-z][a-z0-9]{1,3}_)?\d\d_)*)(?=[a-z])")
ROW = re.compile(rf"^- \*\*({ID})\*\* (.*?)\s+Tests: (.*?)\.$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)`")
NO_ROWS = {"UTF-16", "UTF-32"}
"""What is written as an id is, and is none."""


def each_from(first: str, last: str) -> Iterator[str]:
    """The ids of a range, both ends included."""
    prefix, begin = first.split("-")
    also, end = last.split("-")
    assert prefix == also, f"{first} to {last} are no range"
    return (f"{prefix}-{number:02}" for number in range(int(begin), int(end) + 1))


def cited_in_names(words: Iterable[str]) -> Iterator[str]:
    """The ids that ``words`` of a name say: ``cx 08 ch 07``, ``mr 02 03``, ``el 07 to el 12``."""
    prefix, last, is_range = "", "", False
    for word in words:
        if word == "to":
            is_range = True
        elif word.isdigit():
            cited = f"{prefix}-{word}"
            yield from each_from(last, cited) if is_range else (cited,)
            last, is_range = cited, False
        else:
            prefix = word.upper()


def cited_in(text: str) -> set[str]:
    """All ids that a file cites, in its names and in its words."""
    cited = {id for names in IN_NAMES.findall(text) for id in cited_in_names(names.strip("_").split("_"))}
    for first, last in IN_TEXT.findall(text):
        cited.update(each_from(first, last or first))
    return cited - NO_ROWS


def citations() -> dict[str, set[str]]:
    """The ids that each file of tests cites."""
    files = {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    return {name: cited_in(text) for name, text in files.items() if name != Path(__file__).name}


def rows() -> dict[str, set[str]]:
    """The ids of all rows, and the files of tests that each names."""
    return {id: set(FILE.findall(tests)) for id, _, tests in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))}


def test_requirement_ids_cited_in_tests_exist() -> None:
    known = rows()
    unknown = {name: sorted(cited - known.keys()) for name, cited in citations().items() if not cited <= known.keys()}
    assert unknown == {}


def test_requirement_row_lists_the_test_files_that_cite_it() -> None:
    known = rows()
    citing = {name: cited for name, cited in citations().items() if name.rpartition("/")[2].startswith("test_")}
    missing = sorted((id, name) for name, cited in citing.items() for id in cited if name not in known.get(id, {name}))
    assert missing == []


def test_files_listed_in_requirements_exist() -> None:
    named = set(FILE.findall(DOCUMENT.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not (TESTS / name).is_file()) == []


def test_requirement_rows_have_unique_ids() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = ROW.findall(text)
    assert len(found) == len(re.findall(r"^- \*\*", text, re.MULTILINE)), "each is a row as it is read here"
    ids = [id for id, _, _ in found]
    assert [id for id, same in groupby(sorted(ids)) if len(list(same)) > 1] == []
    for id, behaviour, tests in found:
        assert behaviour, id
        only_files = ", ".join(f"`{name}`" for name in FILE.findall(tests))
        assert re.sub(r"\s+", " ", tests) in (only_files or None, "no test of its own"), id


def test_requirement_rows_refer_only_to_existing_requirements() -> None:
    assert cited_in(DOCUMENT.read_text(encoding="utf-8")) - rows().keys() == set()


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("SV-07, and CX-08.", {"SV-07", "CX-08"}),
        ('"""S2C-04: replies."""', {"S2C-04"}),
        ("(LG-06 to LG-08)", {"LG-06", "LG-07", "LG-08"}),
        ("def test_can_05_cancels_are_ignored", {"CAN-05"}),
        ("def test_s2c_04_replies_are_ignored", {"S2C-04"}),
        ("def test_cx_08_ch_07_client_supports_it", {"CX-08", "CH-07"}),
        ("def test_mr_02_03_04_a_handler_runs_again", {"MR-02", "MR-03", "MR-04"}),
        ("def test_el_07_to_el_09_every_kind_of_field", {"EL-07", "EL-08", "EL-09"}),
        ("UTF-16, UTF-32, UTF-8, ISO-8859-15, SEP-1303, SHA-256, GPT-4o, 2026-07-28, X-11, -32602", set()),
        ("CVE-20-26 and ABC-12-34", set()),
        ("test_limit_of_10_calls, test_a_01_b, test_two_2_things, test_20_connections, test_http_404_is_told", set()),
    ],
)
def test_requirement_ids_are_recognized_in_text(text: str, cited: set[str]) -> None:
    assert cited_in(text) == cited
