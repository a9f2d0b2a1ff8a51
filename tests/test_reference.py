"""`docs/reference.md` has each public name with the first sentence of its docstring.

``python -m tests.test_reference`` writes the page.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from tests.public import FACE, names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Every public name

Each line is a name that you can import; `help(name)` has the whole text, with every option. `from trio_mcp import …`
gives what a first server or client needs, in the sections up to [errors](#errors). The other sections are named after
the module from which you import. The pages on [servers](servers.md), [hosts](hosts.md), [HTTP](http.md),
[tasks](tasks.md) and [authorization](authorization.md) say what to do with these names. `trio_mcp.aio` and
`trio_mcp.blocking` have the client side again, for asyncio and for programs without an event loop. `trio_mcp.testing`
has what tests need.
"""
GROUPS = (
    ("Servers and their handlers", ("server", "openapi", "transports", "middleware", "protocol")),
    ("Clients", ("client", "skills")),
    ("Transports", ("connecting", "serving")),
    ("Requests and their limits", ("runtime", "concurrency", "recording")),
    ("Several servers or processes", ("proxying", "fleet", "tasks")),
)
"""The sections of the names that ``trio_mcp`` itself has, and the packages of each."""
ERRORS = "Errors"


def of_assignments() -> dict[str, tuple[str, str]]:
    """The modules, and the texts under them, of names that stand for no class or function."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted((ROOT / "src" / "trio_mcp").rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            match following:
                case ast.Expr(ast.Constant(str(text))) if isinstance(target, ast.Name):
                    room = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
                    found.setdefault(target.id, (room, text))
                case _:
                    pass
    return found


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][^.])\.(?: |$)", paragraph)[0]
    return re.sub(r"``([^`]*)``", r"`\1`", sentence).replace("|", "\\|").removesuffix(".")


def lines() -> Iterator[tuple[str, str, str]]:
    """Section, name and sentence of each public name."""
    assigned = of_assignments()
    for space in FACE:
        for name, thing in sorted(names(space).items(), key=lambda pair: pair[0].lower()):
            if inspect.isclass(thing) or inspect.isroutine(thing):
                module, text = thing.__module__, inspect.getdoc(thing) or ""
            else:
                module, text = assigned[name]
            if space != "trio_mcp":
                section = space
            elif inspect.isclass(thing) and issubclass(thing, BaseException):
                section = ERRORS
            else:
                room = module.split(".")[1]
                (section,) = (title for title, rooms in GROUPS if room in rooms)
            yield section, name, first_sentence(text)


def expected() -> str:
    """The text of the page."""
    told = list(lines())
    parts = [HEAD]
    for section in (*(title for title, _ in GROUPS), ERRORS, *FACE[1:]):
        rows = "".join(f"| `{name}` | {sentence} |\n" for of, name, sentence in told if of == section)
        parts.append(f"## {section}\n\n| name | what it is |\n|---|---|\n{rows}")
    return "\n".join(parts)


def test_the_page_has_each_public_name_with_the_first_sentence_of_its_docstring() -> None:
    assert PAGE.read_text() == expected()


if __name__ == "__main__":
    PAGE.write_text(expected())
