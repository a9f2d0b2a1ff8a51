"""No regular expression of the package costs more than a few steps for each character, whatever the text.

The patterns are found in the source, so that a new one is tested without being named here. Texts are made of what each
pattern is about, and the steps are counted for a text and for one that is twice as long.
"""

from __future__ import annotations

import ast
import importlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs
import pytest
from tests.pattern_steps import UNBOUNDED, Steps, deep_recursion, pieces_of, repeats_in

from trio_mcp.server.offers.uris import UriTemplate
from trio_mcp.transports.http.requests import _small_chunks  # pyright: ignore[reportPrivateUsage]

PACKAGE: Final = Path(__file__).parent.parent / "src" / "trio_mcp"
METHODS: Final = ("match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split")
"""The methods of patterns, and functions of `re`, that look at a text."""
CALLS: Final = {"lazy_pattern", *(f"re.{each}" for each in ("compile", *METHODS))}
"""Calls that make a pattern."""


@attrs.frozen
class Found:
    """A pattern in the source: a call of `re` or `lazy_pattern`."""

    file: Path
    call: ast.Call
    name: str | None
    """The variable that the pattern is assigned to."""
    returned_by: str | None
    """The function that returns the pattern."""

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(PACKAGE).as_posix()}:{self.name or self.returned_by or self.call.lineno}"

    @property
    def function(self) -> str:
        return self.call.func.attr if isinstance(self.call.func, ast.Attribute) else "compile"

    def compiled(self, module: ModuleType) -> re.Pattern[Any]:
        """Return the pattern, with the values that the names in it have. Raises `NameError` for local ones."""

        def value(node: ast.expr) -> Any:
            return eval(compile(ast.Expression(node), str(self.file), "eval"), dict(vars(module)))

        flags = [each.value for each in self.call.keywords if each.arg == "flags"]
        flags += self.call.args[1:2] if self.function == "compile" else []
        return re.compile(value(self.call.args[0]), value(flags[0]) if flags else 0)


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(sources()[path])


def files_with_patterns() -> list[Path]:
    """Return the files that have a call of `CALLS`, or other words that look like one."""
    return [path for path, text in sources().items() if re.search(r"\bre\b|lazy_pattern", text)]


def found_in(path: Path) -> Iterator[Found]:
    names, returned_by, calls = dict[int, str](), dict[int, str](), list[ast.Call]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            names[id(node.value)] = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        elif isinstance(node, ast.FunctionDef):
            returned_by |= {id(each.value): node.name for each in node.body if isinstance(each, ast.Return)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
            calls.append(node)
    for call in calls:
        yield Found(path, call, names.get(id(call)), returned_by.get(id(call)))


@cache
def uses() -> list[tuple[Path, str, str]]:
    """Return the file, the name and the method wherever one of `METHODS` is named behind that of a pattern."""
    names = "|".join({found.name.rpartition(".")[2] for found in PATTERNS.values() if found.name})
    used = re.compile(rf"\b(?:{names})\s*\.\s*(?:{'|'.join(METHODS)})\b")
    return [
        (path, ast.unparse(node.value).rpartition(".")[2], node.attr)
        for path, text in sources().items()
        if used.search(text)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in METHODS
    ]


@cache
def methods_of(found: Found) -> tuple[str, ...]:
    """Return the methods by which a pattern looks at texts: those that stand behind its name, all if there is none."""
    if found.place in MADE_BY_FUNCTIONS:
        return (MADE_BY_FUNCTIONS[found.place][0],)
    if found.function != "compile":
        return (found.function,)
    name = (found.name or "").rpartition(".")[2]
    used = {
        method
        for path, used_name, method in uses()
        if used_name == name and name and (path == found.file or not name.startswith("_"))
    }
    return tuple(sorted({"sub" if each not in ("match", "fullmatch") else each for each in used})) or ("sub",)


PATTERNS: Final = {
    found.place: found
    for path in files_with_patterns()
    if path.name != "lazy.py"  # whose patterns are those of its callers
    for found in found_in(path)
}

MADE_BY_FUNCTIONS: Final[dict[str, tuple[str, Callable[[], list[re.Pattern[Any]]]]]] = {
    "server/offers/uris.py:self._pattern": (
        "fullmatch",
        lambda: [UriTemplate(each)._pattern for each in TEMPLATES],  # pyright: ignore[reportPrivateUsage]
    ),
    "transports/http/requests.py:_small_chunks": ("match", lambda: [_small_chunks()]),
}
"""Patterns that functions make of their arguments, with their methods."""
TEMPLATES: Final = (
    *("a://{one}/{two}/x?{three}&y={four}", "a://{one}/{path*}/end", "a://{+path}", "a://x/{a},{b}"),
    *("a://{one}/{two}{?three,four}", "a://{one}/{path*}/end{?three}", "a://x?{one}{&two}", "a://X.y{+path}{?one}"),
)
MOST_UNITS: Final = 120
FACTOR: Final = 2.6
"""Steps for a text of twice the length: 2 for a pattern that is linear, 4 for one that is quadratic."""
MOST_STEPS: Final = 450
"""Steps for each character. A pattern with bounds reads no further than these, but may do so at each character."""


def patterns_at(place: str) -> list[re.Pattern[Any]]:
    """Return the pattern of a place, or, for one that a function makes, some that it makes."""
    found = PATTERNS[place]
    if place in MADE_BY_FUNCTIONS:
        return MADE_BY_FUNCTIONS[place][1]()
    name = ".".join(("trio_mcp", *found.file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    try:
        return [found.compiled(importlib.import_module(name))]
    except ImportError as error:
        pytest.skip(str(error))
    except NameError:
        pytest.fail(f"{place} is made of arguments: add what the function makes to MADE_BY_FUNCTIONS")


def assert_linear(pattern: re.Pattern[Any], methods: Sequence[str]) -> None:
    """Count the steps for each piece repeated, and for each two, and for texts of twice the length."""
    bounds, pieces, steps = repeats_in(pattern), pieces_of(pattern), Steps(pattern)
    pairs = [one + other for one, other in product(pieces, pieces) if one != other]
    if all(bound < UNBOUNDED for bound in bounds):
        pairs = []  # each attempt is bounded, whatever the text
    units = [*pieces, *random.Random(1).sample(pairs, len(pairs))][:MOST_UNITS]
    least = max(40, *(bound for bound in bounds if bound < UNBOUNDED), 0)
    for method, unit, before, behind in product(methods, units, ("", *pieces[:1]), ("", "\x00")):
        shown = f"{before!r}, {unit!r} repeated, {behind!r}"
        text = unit * (2 * -(-least // len(unit)))
        with deep_recursion():
            steps.run(method, before + text + behind)
            once = steps.count
            assert once < MOST_STEPS * len(text), f"each character costs {once // len(text)} steps: {shown}"
            steps.run(method, before + text * 2 + behind)
        factor = steps.count / max(once, 200)
        assert factor < FACTOR, f"twice the text costs {factor:.1f} times the steps: {shown}"


def test_every_regular_expression_is_found_by_its_module_name() -> None:
    assert len(PATTERNS) > 120
    for path in files_with_patterns():
        for node in ast.walk(tree_of(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), path
            assert not (
                isinstance(node, ast.Import) and any(each.name == "re" and each.asname for each in node.names)
            ), path


@pytest.mark.parametrize("place", PATTERNS)
def test_every_regular_expression_matches_in_linear_time(place: str) -> None:
    for pattern in patterns_at(place):
        assert_linear(pattern, methods_of(PATTERNS[place]))


@pytest.mark.parametrize("place", PATTERNS)
def test_counter_of_regular_expression_steps_finds_the_same_matches_as_the_expression(place: str) -> None:
    pattern = patterns_at(place)[0]
    chance, pieces, steps = random.Random(2), [*pieces_of(pattern), "a", "0", " ", "\n"], Steps(pattern)
    for _ in range(30):
        data: Any = "".join(chance.choices(pieces, k=chance.randint(0, 8)))
        if isinstance(pattern.pattern, bytes):
            data = data.encode("latin-1", "replace")
        text = data.decode("latin-1") if isinstance(data, bytes) else data
        for method in ("match", "fullmatch"):
            found = getattr(pattern, method)(data)
            assert steps.run(method, text) == ([] if found is None else [found.span()]), (method, text)
        first = pattern.search(data)
        assert steps.run("finditer", text)[:1] == ([] if first is None else [first.span()]), text


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\beyJ[\w-]{8,}\.eyJ", "search"),
        (r"(a+)+b", "match"),
        (r"(?:a|a)*b", "match"),
        (r"\s*,", "search"),
        (r"[a-z]*[a-z0-9]*x", "match"),
        (r"<!--.*?-->", "finditer"),
        (r"(?s)/\*.*?\*/", "sub"),
        (r"[a-z0-9.]{1,500}@", "search"),
        (r"(?:[a-z]{0,200}){0,200}x", "match"),
    ],
)
def test_pattern_check_detects_a_regular_expression_that_backtracks(pattern: str, method: str) -> None:
    with pytest.raises(AssertionError):
        assert_linear(re.compile(pattern), [method])
