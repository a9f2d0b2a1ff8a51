"""Build the documentation as a site: ``python docs/site/build.py FOLDER``, with the extra ``docs``.

The pages stay where readers of the repository look for them. This program copies them into one folder, lets each link
between them lead to the page in place of the file, and adds a page for each group of public names, with the docstrings,
in place of the pages of ``docs/reference``. From that folder
Sphinx makes the site, in which any warning is an error. Beside each page stands its text as Markdown, and ``llms.txt``
names all of these texts.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from types import ModuleType
from typing import Any

from contents import NOT_SEARCHED, SECTIONS, TERMS
from sphinx.cmd.build import main as sphinx_build

SITE = Path(__file__).parent
ROOT = SITE.parent.parent

CONTRIBUTED = {
    "websocket": "src/trio_mcp/transports/WEBSOCKET.md",
    "cancel-acknowledged": "src/trio_mcp/transports/CANCEL_ACKNOWLEDGED.md",
    "benchmarks": "benchmarks/README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
}
"""The pages that are outside of the folder ``docs``."""

GENERATED = ROOT / "docs" / "reference"
"""The pages of the API as they are in the repository."""

FILES = {
    **{
        page.relative_to(ROOT / "docs").with_suffix("").as_posix(): page.relative_to(ROOT).as_posix()
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if GENERATED not in page.parents
    },
    **CONTRIBUTED,
}
"""The file of each page, by the name of the page."""

AGAIN = ("trio_mcp.aio", "trio_mcp.blocking")
"""The groups whose classes have the names of other classes, between which links could not choose. Their pages list the
members with their first sentences."""

LINK = re.compile(r"(?<=\]\()([^()\s#]+)(?=[#)])")


def pages() -> dict[str, str]:
    """The text of each page, with links to pages of the site."""
    return {page: with_links_to_pages((ROOT / file).read_text(), PurePosixPath(file)) for page, file in FILES.items()}


def with_links_to_pages(text: str, file: PurePosixPath) -> str:
    """Return the ``text`` of ``file``, with links to other pages in place of links to their files. Other files, such
    as pictures, are in the folder ``files`` of the site."""
    names = {path: f"{page}.md" for page, path in FILES.items()} | {"README.md": "index.md"}
    names |= {f"docs/reference/{page.stem}.md": f"api/{page.stem}.md" for page in GENERATED.glob("*.md")}
    here = {path: page for page, path in FILES.items()}[file.as_posix()].rpartition("/")[0] or "."

    def target(link: re.Match[str]) -> str:
        if ":" in link[1]:
            return link[1]
        path = normpath(file.parent / link[1])
        if path in names:
            return relpath(names[path], here)
        if not path.endswith(".md") and (ROOT / path).is_file():
            return relpath(f"files/{path}", here)
        raise ValueError(f"{file}: the link {link[1]} leads to no page of the site")

    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(target, part) for part in parts)


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^()\s]*files/([^()\s]+))\.svg\)")


def with_narrow_pictures(text: str) -> str:
    """Return ``text`` with pictures that narrow windows show in their narrow variant, where there is one."""

    def picture(found: re.Match[str]) -> str:
        alt, path, file = found.groups()
        if not (ROOT / f"{file}-narrow.svg").is_file():
            return found[0]
        source = f'<source media="(max-width: 480px)" srcset="{path}-narrow.svg">'
        return f'<picture>{source}<img alt="{" ".join(alt.split())}" src="{path}.svg"></picture>'

    return PICTURE.sub(picture, text)


def groups() -> Iterator[tuple[str, dict[str, str]]]:
    """The groups of ``docs/reference.md``, each with a sentence for each of its public names."""
    for section in (ROOT / "docs" / "reference.md").read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (.*) \|$", section, flags=re.MULTILINE)
        yield section.partition("\n")[0], {name: sentence.replace("\\|", "|") + "." for name, sentence in rows}


def page_of(group: str) -> str:
    return "api/" + group.lower().removeprefix("trio_mcp.").replace(" ", "-")


def module_of(group: str) -> ModuleType:
    """The module that has the names of a group."""
    return import_module(group if group.startswith("trio_mcp.") else "trio_mcp")


def documented(group: str, names: dict[str, str]) -> str:
    """The source of the page of a group: Sphinx reads the docstrings, which values do not have."""
    if group in AGAIN:
        return in_repository(group)
    parts = [f"# {group}\n"]
    module = module_of(group)
    for name, sentence in names.items():
        kind, full = kind_of(getattr(module, name)), f"{module.__name__}.{name}"
        told = f"auto{kind}:: {full}" if kind else f"data:: {full}\n\n   {sentence.replace('`', '``')}"
        parts.append(f"## {name}\n\n```{{eval-rst}}\n.. {told}\n```\n")
    return "\n".join(parts)


def in_repository(group: str) -> str:
    """The page of a group as it is in the repository."""
    return (ROOT / "docs" / "reference" / f"{page_of(group).removeprefix('api/')}.md").read_text()


def kind_of(thing: object) -> str | None:
    """What Sphinx calls a thing that has a docstring of its own."""
    if inspect.isclass(thing):
        return "exception" if issubclass(thing, BaseException) else "class"
    return "function" if inspect.isroutine(thing) else None


def as_markdown(group: str, names: dict[str, str]) -> str:
    """The page of a group for readers of Markdown: signatures and docstrings."""
    if group in AGAIN:
        return in_repository(group)
    parts = [f"# {group}\n"]
    for name, sentence in names.items():
        thing: Any = getattr(module_of(group), name)
        parts.append(f"## {name}\n\n{signed(name, thing) if kind_of(thing) else sentence}\n")
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            function: Any = getattr(value, "__func__", value)  # of a class method
            if not member.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
                parts.append(f"### {name}.{member}\n\n{signed(member, function)}\n")
    return "\n".join(parts)


def signed(name: str, thing: Any) -> str:
    """The signature of a thing, where it has one, and its docstring."""
    text = re.sub(r"``([^`]*)``", r"`\1`", inspect.getdoc(thing) or "")
    try:
        return f"```python\n{name}{inspect.signature(thing)}\n```\n\n{text}"
    except (TypeError, ValueError):  # a property; an error or a dictionary that is made as Python's own are
        return text


def title_of(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def first_sentence(text: str) -> str:
    """The first sentence of a page behind its title, without links."""
    paragraphs = (part for part in text.split("\n\n")[1:] if part[:1].isalpha() or part[:1] == "[")
    paragraph = " ".join(next(paragraphs, "").split())
    return re.split(r"(?<=\w[`)])\. |(?<=\w)\. ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph))[0].rstrip(":.")


def assemble(source: Path, twins: Path) -> None:
    """Write what Sphinx reads into ``source``, and the texts for readers of Markdown into ``twins``."""
    texts = pages()
    api = {page_of(group): (documented(group, names), as_markdown(group, names)) for group, names in groups()}
    sections = {**SECTIONS, "Reference": ("reference", *api, *SECTIONS["Reference"])}
    in_navigation = {page for section in sections.values() for page in section} | {"index"}
    if strange := texts.keys() ^ (in_navigation - api.keys()):
        raise ValueError(f"in no section of the navigation, or no page: {sorted(strange)}")
    for folder in (source, twins):
        for page in in_navigation:
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
        for file in {link for text in texts.values() for link in re.findall(r"\]\((?:\.\./)*files/([^)#]+)", text)}:
            (folder / "files" / file).parent.mkdir(parents=True, exist_ok=True)
            for each in (file, file.replace(".svg", "-narrow.svg")):
                if (ROOT / each).is_file():
                    shutil.copy(ROOT / each, folder / "files" / each)
    trees = (
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(section) + "\n```\n"
        for title, section in sections.items()
    )
    for page, text in texts.items():
        (twins / f"{page}.md").write_text(text)
        options = "---\nno-search: true\n---\n\n" if page in NOT_SEARCHED else ""
        terms = "".join(f"```{{index}} ! {term}\n```\n" for term in TERMS.get(page, ()))
        title, _, rest = re.sub(r"<!--.*?-->\n", "", with_narrow_pictures(text)).partition("\n")
        tree = "".join(trees) if page == "index" else ""
        (source / f"{page}.md").write_text(f"{options}{title}\n\n{terms}{rest}{tree}")
    for page, (text, twin) in api.items():
        (source / f"{page}.md").write_text(text)
        (twins / f"{page}.md").write_text(twin)
    everything = texts | {page: twin for page, (_, twin) in api.items()}
    lines = [f"# trio-mcp\n\n> {first_sentence(texts['index'])}\n"]
    for title, section in sections.items():
        lines.append(f"\n## {title}\n\n")
        for page in section:
            about = "" if page in api else f": {first_sentence(everything[page])}"
            lines.append(f"- [{title_of(everything[page])}]({page}.md){about}\n")
    (twins / "llms.txt").write_text("".join(lines))


def build(folder: Path) -> int:
    """Build the site in ``folder``, which must be missing or empty, and return the exit status of Sphinx."""
    with tempfile.TemporaryDirectory() as work:
        source, twins = Path(work, "source"), Path(work, "twins")
        assemble(source, twins)
        options = [
            "-q",
            "-W",
            "--keep-going",
            "-j",
            "2",
            "-b",
            "html",
            "-c",
            str(SITE),
            "-d",
            str(Path(work, "doctrees")),
        ]
        status = sphinx_build([*options, str(source), str(folder)])
        shutil.copytree(twins, folder, dirs_exist_ok=True)
    return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
