"""Create the text that `help` shows for a class with fields: the docstring of the class, then each field with its
docstring.

Editors show a field's docstring, but `help` doesn't, because Python doesn't store it. It is read from the source, if
there is any, when the class docstring is first read, so programs that never read it pay nothing.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from textwrap import dedent, indent
from typing import Final

import attrs

_LONGEST: Final = 60
"""Maximum length of a field's default value in the text of `help`."""


@cache
def documented(kind: type, doc: str | None) -> str | None:
    """Return the class docstring ``doc`` with the fields of the class appended.

    Inherited fields come first.
    """
    fields = "\n".join(f"{name}{told}" for name, told in _all_fields(kind).items())
    return "\n\n".join(text for text in (inspect.cleandoc(doc or ""), fields and "Fields:\n" + fields) if text) or None


def _all_fields(kind: type) -> dict[str, str]:
    try:
        (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # the source code of the class may not be installed
        return {}
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for base in definition.bases:  # don't use `kind.__bases__`, because a TypedDict has other bases at run time
        named = vars(sys.modules[kind.__module__]).get(ast.unparse(base))
        if isinstance(named, type) and named.__module__.startswith("trio_mcp."):
            found |= _all_fields(named)
    return found | dict(_own_fields(kind, definition))


def _own_fields(kind: type, definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise([*definition.body, ast.Pass()]):
        match statement:
            case ast.AnnAssign(target=ast.Name(name), annotation=hint) if not _is_private(name, hint):
                told = f": {ast.unparse(hint)}{_default(kind, name)}"
                match following:
                    case ast.Expr(ast.Constant(str(text))):
                        told += "\n" + indent(inspect.cleandoc(text), "    ")
                    case _:
                        pass
                yield f"  {name}", indent(told, "  ").lstrip()
            case _:
                pass


def _is_private(name: str, hint: ast.expr) -> bool:
    return name.startswith("_") or "ClassVar" in ast.unparse(hint)


def _default(kind: type, name: str) -> str:
    """Return the source code of a field's default value.

    If the code is long, or the value isn't the same for all instances, return an empty string.
    """
    fields = attrs.fields_dict(kind) if attrs.has(kind) else {}
    default = fields[name].default if name in fields else attrs.NOTHING
    shown = repr(default)
    is_told = not (default is attrs.NOTHING or isinstance(default, attrs.Factory) or len(shown) > _LONGEST)  # pyright: ignore[reportArgumentType]
    return f" = {shown}" if is_told else ""
