"""Settings of Sphinx, which `build.py` runs."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from textwrap import dedent
from typing import Any

from docutils.nodes import Element
from pygments.lexers.configs import NginxConfLexer
from pygments.lexers.data import YamlLexer
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FACE = [import_module(f"trio_mcp{each}") for each in ("", ".types", ".auth", ".stores", ".hosting")]
"""The modules that have the public names; each name is in one of them."""

project = "trio-mcp"
author = "The trio-mcp authors"
version = release = version_of("trio-mcp")
extensions = [
    "myst_parser",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]

myst_heading_anchors = 4
autodoc_default_options = {"members": True, "show-inheritance": True}
toc_object_entries = False  # `build.py` writes a heading for each public name
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "py:obj"  # a name in single backticks is a link, where the site has that name

# A build asks nobody: the inventories of other projects are here, with the names that our docstrings have. One that is
# missing there is a warning; other words in single backticks need be no links.
inventories = Path(__file__).parent / "inventories"
intersphinx_mapping = {
    "trio": ("https://trio.readthedocs.io/en/stable/", str(inventories / "trio.inv")),
    "python": ("https://docs.python.org/3/", str(inventories / "python.inv")),
    "attrs": ("https://www.attrs.org/en/stable/", str(inventories / "attrs.inv")),
}
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!(trio|attrs|collections|contextlib|logging|os|pathlib|ssl|subprocess)\.).*|.*\[.*")
]

html_theme = "furo"
html_title = f"trio-mcp {version}"
html_logo = "static/logo.svg"
html_favicon = "static/logo.svg"
html_show_copyright = False
html_show_sphinx = False
notfound_urls_prefix = "/"  # the page for a wrong address is served from anywhere, so its links begin at the root
copybutton_exclude = ".linenos, .gp, .go"  # in a console session, the commands are copied without prompts and output
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False  # `build.py` puts the text of each page beside it


def find_public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Find what a docstring or an annotation names by its module, or by the last part of its name."""
    first, *others = node["reftarget"].removeprefix("trio_mcp.").split(".")
    places = ((module, part) for part in (first, *others) for module in FACE if part in module.__all__)
    module, public = next(places, (None, None))
    if node.get("refdomain") != "py" or module is None:
        return None
    resolve = partial(env.domains["py"].resolve_xref, env, node["refdoc"], app.builder, "obj")
    name = f"{module.__name__}.{public}"
    member = f"{name}.{others[-1]}" if others else ""
    return resolve(member, node, text) or resolve(name, node, text)  # a field is told of in its class


FIELD = re.compile(r"  (\w+: .*)")
SECTION = re.compile(r"(?m)^(Args|Raises):\n((?:  .*\n?)+)")


def as_list(section: re.Match[str]) -> str:
    """Return the section "Args:" or "Raises:" of a docstring as a list in RST."""
    mark = "``" if section[1] == "Args" else "`"
    items = re.sub(r"(?m)^(\w[\w.]*): ", rf"- {mark}\1{mark}: ", dedent(section[2]))
    return f"{section[1]}:\n\n" + re.sub(r"(?m)^    ", "  ", items)


def write_as_rst(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Mark what docstrings, which are written for `help`, show by their indentation alone: fields, and examples."""
    text, _, fields = "\n".join(lines).partition("\nFields:\n")
    text = SECTION.sub(as_list, text)
    text = re.sub(r"(?m)(^(?![ *-]).*(?<!::)\n)\n(?=    \S)", r"\1\n.. code-block:: python\n\n", text)
    listed = [
        f"- ``{field[1]}``\n" if (field := FIELD.fullmatch(line)) else line.removeprefix("    ")
        for line in fields.splitlines()
    ]
    lines[:] = "\n".join([text, "", *listed, ""]).splitlines()


def leave_out_fields(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of a class, which are listed behind its docstring with those of its bases."""
    return None if isinstance(thing, property | Enum) or inspect.isroutine(thing) else True


LEXERS = {
    "haproxy": TextLexer,
    "haproxy-replicas": TextLexer,
    "haproxy-sessions": TextLexer,
    "nginx-replicas": NginxConfLexer,
    "yaml-compose": YamlLexer,
    "yaml-kubernetes": YamlLexer,
}
"""How blocks are shown that tests find by names of their own."""


def name_markdown(app: Sphinx, page: str, template: str, context: dict[str, Any], document: object) -> None:
    """Name the text of a page in its head, for programs that rather read Markdown."""
    if document is not None:
        name = page.rpartition("/")[2]
        context["metatags"] += f'<link rel="alternate" type="text/markdown" href="{name}.md" />'


def setup(app: Sphinx) -> None:
    for name, lexer in LEXERS.items():
        app.add_lexer(name, lexer)
    app.connect("missing-reference", find_public_name)
    app.connect("autodoc-process-docstring", write_as_rst)
    app.connect("autodoc-skip-member", leave_out_fields)
    app.connect("html-page-context", name_markdown)
