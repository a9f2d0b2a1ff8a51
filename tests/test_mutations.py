"""The script `mutations.py`: which defects it makes, and that each is made where it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests import mutations
from tests.mutations import PACKAGE, ROOMS, ROOT, Copy, End, chosen, files_in, mutations_of


def made_in(source: str) -> set[str]:
    """The texts that ``source`` becomes by one defect each."""
    text = source.encode()
    return {mutation.made_in(text).decode() for mutation in mutations_of("state/x.py", text)}


@pytest.mark.parametrize(
    ("source", "defects"),
    [
        ("a == b", {"(a != b)", "pass"}),
        ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
        ("x = a is not None", {"x = (a is None)"}),
        ("x = a in b", {"x = (a not in b)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = 3", {"x = 4"}),
        ("x = True", {"x = False"}),
        ("if a:\n    x = b", {"if (not (a)):\n    x = b"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if (not (a))]"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("f(\n  a\n)", {"pass"}),
        ("self.x = a", {"pass"}),
        ("x += y", {"pass"}),
        ("raise x", {"pass"}),
        ('"ü"; x = 1', {'"ü"; x = 2'}),
    ],
)
def test_mutation_tool_makes_each_kind_of_defect(source: str, defects: set[str]) -> None:
    assert made_in(source) == defects


@pytest.mark.parametrize(
    "source",
    [
        '"""Docstring."""',
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "x: Literal[1] = y",
        "assert a < 1",
        "x = f'{a + 1}'",
        "__all__ = [1]",
        "def f():\n    return None",
        "from a import b",
        "if TYPE_CHECKING:\n    import a",
    ],
)
def test_mutation_tool_ignores_docstrings_and_annotations(source: str) -> None:
    assert made_in(source) == set()


def test_mutation_tool_covers_every_subpackage() -> None:
    assert {room.parent.name for room in (ROOT / PACKAGE).glob("*/__init__.py")} == {
        room for room in ROOMS if not room.endswith(".py")
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_mutated_source_differs_from_the_original_and_is_valid_python(room: str) -> None:
    for path in files_in(room):
        source = path.read_bytes()
        for mutation in mutations_of(path.relative_to(ROOT / PACKAGE).as_posix(), source)[::100]:
            assert mutation.room == room
            assert mutation.made_in(source) != source
            ast.parse(mutation.made_in(source))


def test_mutation_selection_is_reproducible_by_seed() -> None:
    first = chosen(1, 60, ROOMS)
    assert chosen(1, 60, ROOMS) == first
    assert chosen(2, 60, ROOMS) != first
    assert len(set(first)) == 60
    assert {mutation.room for mutation in first} == set(ROOMS)


LOOP = """
def rounds(most: int) -> int:
    count = 0
    while count < most:
        count += 1
    return count
"""
TESTS = """
from trio_mcp.state.loop import rounds

def test_rounds_returns_the_maximum_number_of_rounds():
    assert rounds(3) == 3
"""


def test_mutation_tool_reports_a_mutation_that_fails_a_test_and_stops_a_mutation_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Copy(ROOT, tmp_path)
    source = tree.root / PACKAGE / "state" / "loop.py"
    source.write_text(LOOP)
    (tree.root / "tests" / "state" / "test_loop.py").write_text(TESTS)
    made = {each.before: each for each in mutations_of("state/loop.py", LOOP.encode()) if each.kind != "condition"}
    assert tree.test(made["return count"]) is End.CAUGHT
    monkeypatch.setattr(mutations, "SECONDS", 5.0)
    assert tree.test(made["count += 1"]) is End.HUNG
    assert source.read_text() == LOOP
