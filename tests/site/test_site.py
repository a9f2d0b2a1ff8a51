"""The documentation as a site: it is built without a warning, its links hold, and its search finds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import attrs
import pytest
from tests.interaction.browser.chromium import CHROMIUM, OPTIONS, needs_chromium

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "docs" / "site" / "build.py"
LIMIT = 150
"""Seconds after which a program hangs; no measure of speed."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site") / "html"
    built = subprocess.run([sys.executable, BUILD, folder], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder


@attrs.define
class Page(HTMLParser):
    """What a page links to, what it loads, and the places that links may lead to."""

    links: set[str] = attrs.field(factory=set[str])
    loaded: set[str] = attrs.field(factory=set[str])
    places: set[str] = attrs.field(factory=set[str])

    def __attrs_post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {key: value or "" for key, value in attrs}
        self.places |= {told["id"]} if "id" in told else set()
        if tag == "a" and "href" in told:
            self.links.add(told["href"])
        if tag in {"script", "img", "iframe"} and "src" in told:
            self.loaded.add(told["src"])
        if tag == "link" and told.get("rel") == "stylesheet":
            self.loaded.add(told["href"])


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, Page]:
    found: dict[Path, Page] = {}
    for file in site.rglob("*.html"):
        if "files" not in file.parts and "_downloads" not in file.parts:
            found[file] = Page()
            found[file].feed(file.read_text())
    return found


def test_each_link_leads_to_a_page_and_to_a_place_on_it(pages: dict[Path, Page]) -> None:
    dead: list[str] = []
    for file, page in pages.items():
        for link in page.links | page.loaded:
            if ":" in link:
                continue
            path, _, place = link.partition("#")
            target = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
            if not target.is_file() or (place and target in pages and unquote(place) not in pages[target].places):
                dead.append(f"{file.name}: {link}")
    assert len(pages) > 20
    assert not dead, "\n".join(dead)


def test_a_page_loads_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    assert {
        item for page in pages.values() for item in page.loaded if "//" in item or item.startswith("data:")
    } == set()


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("cancel a call", "with trio.move_on_after"),
        ("behind nginx", "proxy_pass"),
        ("ask the user", "ctx.elicit"),
        ("coming from fastmcp", "FastMCP"),
        ("several replicas", "shared=Redis"),
    ],
)
def test_a_click_on_a_question_of_the_first_page_leads_to_its_answer(site: Path, question: str, words: str) -> None:
    rows = (site / "index.html").read_text().split("<tr")
    (row,) = (row for row in rows if question in re.sub(r"<[^>]*>", "", row))
    (link, *_) = re.findall(r'href="([^"#]*)(?:#[^"]*)?"', row)
    assert words in re.sub(r"<[^>]*>", "", (site / link).read_text())


def test_each_page_stands_beside_its_text_as_markdown_and_a_list_names_all_texts(site: Path) -> None:
    own = {"genindex", "search"}
    made = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    texts = {page for page in made if not page.startswith(("files/", "_")) and page not in own}
    assert {page for page in texts if not (site / f"{page}.md").read_text().startswith("# ")} == set()
    assert set(re.findall(r"\]\((.*?)\.md\)", (site / "llms.txt").read_text())) == texts - {"index"}


def test_the_reference_has_each_public_name_with_its_docstring(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference.md").read_text(), flags=re.MULTILINE)
    assert {name for name in names if f'id="trio_mcp.{name}"' not in text} == set()
    assert 'href="https://trio.readthedocs.io/en/stable/reference-core.html#trio.CancelScope"' in text
    assert 'href="clients.html#trio_mcp.Client.call_tool"' in text


@needs_chromium
def test_the_search_finds_the_page_on_nginx(site: Path, tmp_path: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/search.html?q=nginx"
            options = ("--dump-dom", "--virtual-time-budget=20000", f"--user-data-dir={tmp_path}")
            seen = subprocess.run(
                [str(CHROMIUM), *OPTIONS, *options, url], capture_output=True, text=True, timeout=LIMIT, check=False
            ).stdout
        finally:
            server.shutdown()
            thread.join()
    assert re.search(r'<a href="deployment\.html[^"]*"[^>]*>', seen.split('id="search-results"')[1])


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install -e '.[docs]'")
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text("# Here\n\n[There](#no-such-place)\n")
    shutil.copytree(BUILD.parent, tmp_path / "conf")
    options = ["-q", "-W", "-c", tmp_path / "conf", source, tmp_path / "html"]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert built.returncode != 0
    assert "no-such-place" in built.stderr
