"""Mutate the rooms and see which defects the tests of the same room let pass. Run by hand, from the root of the tree:

    python -m tests.mutations --seed 1 --count 100
    python -m tests.mutations --seed 1 --count 20 --room concurrency

A mutation is one small defect in one file of `ROOMS`. It is made in a copy of the tree, never in the checkout, and the
tests of its own floor run against it, no others: a defect in a file is caught beside that file. A run that does not
end within its limit is ended, and counts as caught; it is printed, since a machine may just be slow. What survives is
printed; it is a gap in the tests, unless nobody could ever see a difference: then `equivalent_mutations.toml` has it,
with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

import attrs

__all__ = ["ROOMS", "Mutation", "mutations_of"]

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = Path("src", "trio_mcp")
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutations.toml")

ROOMS: Final = (
    *("auth", "cli", "client", "concurrency", "connecting", "diagnostics", "hosting", "jsonrpc", "protocol"),
    *("proxying", "recording", "runtime", "server", "serving", "state", "stores", "tasks", "testing", "transports"),
    *("aio.py", "blocking.py", "bridging", "inspecting", "openapi", "skills", "fleet", "torture"),
)
"""Folders of the package whose files are mutated, each tested by the folder of that name in `tests/`; and two files."""

TESTED_WITH: Final = {"aio.py": "bridging", "blocking.py": "bridging"}
"""Rooms that are tested by the folder of another one."""

AT_ONCE: Final = 2
"""Runs of tests beside each other."""

SECONDS: Final = 300.0
"""Time after which a run of tests is ended: longer than the tests of any room take on a busy machine."""


@attrs.frozen
class Mutation:
    """One small defect: ``after`` stands where ``before`` stood, from byte ``begin`` of ``file`` on."""

    file: str
    """File of the package, ``state/requests.py`` for example."""
    line: int
    kind: str
    before: str
    after: str
    begin: int
    text: str
    """Text of the line, by which a mutation is known however its file changes."""

    @property
    def room(self) -> str:
        """Return the room of the file."""
        return self.file.partition("/")[0]

    def made_in(self, source: bytes) -> bytes:
        """Return the text of the file with the defect."""
        before = self.before.encode()
        assert source.startswith(before, self.begin), self
        return source[: self.begin] + self.after.encode() + source[self.begin + len(before) :]

    @property
    def name(self) -> str:
        """Return what the mutation is called in `EQUIVALENT`."""
        return f"{self.file}: {self.text}: {' '.join(self.before.split())} => {self.after}"

    def __str__(self) -> str:
        return f"line {self.line}, {self.kind}: {self.name}"


# The defects

Change: TypeAlias = tuple[str, ast.AST, str]
"""The kind of a defect, the node it replaces, and the text to put there."""

_FLIPPED: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield the defects that ``node`` itself can have."""
    match node:
        case ast.Compare(ops=[operator]):
            for flipped in _FLIPPED[type(operator)]:
                yield "comparison", node, _text(_with(node, ops=[flipped()]))
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", node, _text(_with(node, op=other))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", node, _text(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator):
            other = ast.Sub() if isinstance(operator, ast.Add) else ast.Add()
            yield "plus/minus", node, _text(_with(node, op=other))
        case ast.Constant(value=bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, str(value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, f"(not {_text(test)})"
        case ast.comprehension(ifs=tests):
            yield from (("condition", test, f"(not {_text(test)})") for test in tests)
        case ast.Return(value=ast.expr() as value) if not _is_constant(value, None):
            yield "return", node, "return None"
        case ast.Expr(value=value) if not isinstance(value, ast.Constant | ast.Yield):
            yield "removal", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removal", node, "pass"
        case ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            yield "removal", node, "pass"
        case _:
            pass


def _with(node: ast.AST, **changed: object) -> ast.AST:
    """Return a copy of ``node`` with some of its fields ``changed``."""
    changed_node = copy.copy(node)
    for name, value in changed.items():
        setattr(changed_node, name, value)
    return changed_node


def _text(node: ast.AST) -> str:
    return f"({ast.unparse(node)})"


def _is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and what is in it, except what says nothing about behaviour: annotations, assertions for the
    type checker, slots and exported names; and f-strings, of whose parts Python 3.11 does not say where they are."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return
        case ast.AnnAssign(value=value):
            if value is not None:
                yield from _mutable(value)
            return
        case ast.arg() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "cast")):
            return
        case _:
            yield node
    for name, field in ast.iter_fields(node):
        if name not in ("returns", "annotation"):
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from _mutable(child)


@cache
def mutations_of(file: str, source: bytes) -> Sequence[Mutation]:
    """Return all defects that ``file`` of the package, with the text ``source``, can be given."""
    lines = source.splitlines(keepends=True)
    begins = [0, *accumulate(map(len, lines))]
    found = dict[tuple[int, str], Mutation]()
    for node in _mutable(ast.parse(source)):
        for kind, replaced, after in _changes(node):
            begin = begins[replaced.lineno - 1] + replaced.col_offset
            end = begins[replaced.end_lineno - 1] + replaced.end_col_offset
            before = source[begin:end].decode()
            text = lines[replaced.lineno - 1].decode().strip()
            found[begin, after] = Mutation(file, replaced.lineno, kind, before, after, begin, text)
    return tuple(found.values())


def files_in(room: str) -> list[Path]:
    """Return the files of a room: those of a folder, or one."""
    path = ROOT / PACKAGE / room
    return [path] if path.is_file() else list(path.rglob("*.py"))


def chosen(seed: int, count: int, rooms: Sequence[str], files: Sequence[str] = ("",)) -> list[Mutation]:
    """Choose ``count`` mutations of the files in ``rooms`` whose names begin with one of ``files``, or all if there are
    fewer. The rooms take turns; in a room each file is as likely as every other, and in it each kind of defect."""
    chance = random.Random(seed)
    left = dict[str, dict[str, dict[str, list[Mutation]]]]()
    for path in sorted(path for room in rooms for path in files_in(room)):
        name = path.relative_to(ROOT / PACKAGE).as_posix()
        if not name.startswith(tuple(files)):
            continue
        for mutation in mutations_of(name, path.read_bytes()):
            left.setdefault(mutation.room, {}).setdefault(name, {}).setdefault(mutation.kind, []).append(mutation)
    taken: list[Mutation] = []
    turns: list[str] = []
    while left and len(taken) < count:
        if not turns:
            turns = chance.sample(list(left), len(left))
        in_room = left[room := turns.pop()]
        kinds = in_room[name := chance.choice(list(in_room))]
        mutations = kinds[kind := chance.choice(list(kinds))]
        taken.append(mutations.pop(chance.randrange(len(mutations))))
        if not mutations:
            del kinds[kind]
        if not kinds:
            del in_room[name]
        if not in_room:
            del left[room]
    return taken


def equivalents() -> set[str]:
    """Return the names of the mutations that make no difference to anybody."""
    return {row["mutation"] for row in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]}


# The runs


class End(Enum):
    """How the tests ended."""

    CAUGHT = "caught"
    HUNG = "ended by the limit"
    SURVIVED = "survived"


class Copy:
    """A copy of the tree, in which one mutation after the other is made and tested."""

    def __init__(self, tree: Path, root: Path) -> None:
        self.root = root
        for folder in ("src", "tests", "examples", "docs", "benchmarks"):
            shutil.copytree(tree / folder, root / folder)
        for file in ("pyproject.toml", "README.md"):
            shutil.copy2(tree / file, root)

    def check(self, rooms: Sequence[str]) -> None:
        """Raise `RuntimeError` unless the tests of ``rooms`` pass without any defect."""
        for room in rooms:
            if (end := self.run([f"tests/{TESTED_WITH.get(room, room)}"])) is not End.SURVIVED:
                raise RuntimeError(f"the tests of {room} fail without any mutation: {end.value}")

    def test(self, mutation: Mutation) -> End:
        """Run the tests of the floor with ``mutation``: first those of its file, which know it best."""
        path = self.root / PACKAGE / mutation.file
        source = path.read_bytes()
        path.write_bytes(mutation.made_in(source))
        try:
            folder = TESTED_WITH.get(mutation.room, mutation.room)
            near = list((self.root / "tests" / folder).rglob(f"test_{path.stem}.py"))
            end = self.run(list(map(str, near)), mutating=True) if near else End.SURVIVED
            return self.run([f"tests/{folder}"], mutating=True) if end is End.SURVIVED else end
        finally:
            path.write_bytes(source)

    def run(self, tests: Sequence[str], *, mutating: bool = False) -> End:
        """Run ``tests``, folders or files. Whatever they have started ends with them."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        if mutating:
            # Bytecode is told apart by the second in which its source was written. Only that of `check` is kept.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=no-shrinking", "--hypothesis-seed=0"]
        options += ["--lane=all", "--wires=pairs"]  # as CI runs them
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return End.SURVIVED if run.wait(SECONDS) == 0 else End.CAUGHT
        except subprocess.TimeoutExpired:
            return End.HUNG
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_each(mutations: Sequence[Mutation], tell: Callable[[Mutation, End], None]) -> None:
    """Test ``mutations``, `AT_ONCE` at a time, and ``tell`` how each ended."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        copies = SimpleQueue[Copy]()
        first = Copy(ROOT, Path(folder, "0"))
        first.check(sorted({mutation.room for mutation in mutations}))
        for number in range(1, AT_ONCE):
            copies.put(Copy(first.root, Path(folder, str(number))))
        copies.put(first)

        def test(mutation: Mutation) -> End:
            tree = copies.get()
            try:
                return tree.test(mutation)
            finally:
                copies.put(tree)

        for mutation, end in zip(mutations, threads.map(test, mutations), strict=True):
            tell(mutation, end)


def main() -> int:
    """Run the command. Return 1 when a mutation survives that is not equivalent."""
    parser = argparse.ArgumentParser(description="Mutate the rooms, and see what the tests of each let pass.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--room", choices=ROOMS, action="append", help="all by default; may be given several times")
    parser.add_argument("--file", action="append", help="only files whose names begin so, state/tables for example")
    options = parser.parse_args()
    rooms = options.room or ROOMS
    for gone in equivalents() - {mutation.name for mutation in chosen(0, sys.maxsize, ROOMS)}:
        print(f"equivalent, and not there any more: {gone}")
    picked = chosen(options.seed, options.count, rooms, options.file or [""])
    same = [mutation for mutation in picked if mutation.name in equivalents()]
    ends = dict.fromkeys(End, 0)

    def tell(mutation: Mutation, end: End) -> None:
        ends[end] += 1
        if end is not End.CAUGHT:
            print(f"{end.value}: {mutation}", flush=True)

    test_each([mutation for mutation in picked if mutation not in same], tell)
    counts = ", ".join(f"{count} {end.value}" for end, count in ends.items())
    print(f"seed {options.seed}, {' '.join(rooms)}: {len(picked)} mutations: {counts}, {len(same)} equivalent")
    return 1 if ends[End.SURVIVED] else 0


if __name__ == "__main__":
    sys.exit(main())
