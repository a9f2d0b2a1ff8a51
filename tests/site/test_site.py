"""The documentation as a site: it is built without a warning, its links hold, and its search finds."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote

import attrs
import pytest
from tests.interaction.browser.chromium import CHROMIUM, OPTIONS, needs_chromium

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "docs" / "site" / "build.py"
CONTENTS = runpy.run_path(str(BUILD.parent / "contents.py"))
LIMIT = 150
"""Seconds after which a program hangs; no measure of speed."""
BUILDING = 280
"""The same for the building of the site."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site") / "html"
    # Half a minute of work, beside all that runs beside the tests: the limit of a test is too short on a busy machine.
    signal.setitimer(signal.ITIMER_REAL, 0)
    command = [sys.executable, BUILD, folder]
    built = subprocess.run(command, capture_output=True, text=True, timeout=BUILDING, check=False)
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


def test_all_internal_links_and_anchors_of_the_site_exist(site: Path, pages: dict[Path, Page]) -> None:
    dead: list[str] = []
    for file, page in pages.items():
        for link in page.links | page.loaded:
            if ":" in link:
                continue
            path, _, place = link.partition("#")
            start = site if path.startswith("/") else file.parent
            target = (start / unquote(path.partition("?")[0]).lstrip("/")).resolve() if path else file
            if not target.is_file() or (place and target in pages and unquote(place) not in pages[target].places):
                dead.append(f"{file.name}: {link}")
    assert len(pages) > 20
    assert not dead, "\n".join(dead)


def test_site_pages_load_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    assert {
        item for page in pages.values() for item in page.loaded if "//" in item or item.startswith("data:")
    } == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Tutorial", "copyist.py"),
        ("Migrate from fastmcp", "FastMCP"),
        ("from the Python SDK", "ClientSession"),
        ("Why trio-mcp: cancellation guarantees", "ctx.cancellation"),
    ],
)
def test_each_link_of_the_home_page_leads_to_an_existing_page(site: Path, text: str, words: str) -> None:
    (section,) = re.findall(r'<section id="where-to-start">.*?</section>', (site / "index.html").read_text(), re.DOTALL)
    links = re.findall(r'<a [^>]*href="([^"#]*)(?:#[^"]*)?"[^>]*>(.*?)</a>', section, re.DOTALL)
    (link,) = (link for link, shown in links if " ".join(re.sub(r"<[^>]*>", "", shown).split()) == text)
    assert words in unescape(re.sub(r"<[^>]*>", "", (site / link).read_text()))


def test_each_site_page_has_a_markdown_version_listed_in_llms_txt(site: Path) -> None:
    own = {"404", "genindex", "py-modindex", "search"}
    made = {page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")}
    texts = {page for page in made if not page.startswith(("files/", "_")) and page not in own}
    assert {page for page in texts if not (site / f"{page}.md").read_text().startswith("# ")} == set()
    assert set(re.findall(r"\]\((.*?)\.md\)", (site / "llms.txt").read_text())) == texts - {"index"}


def test_api_reference_contains_every_public_name(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference.md").read_text(), flags=re.MULTILINE)
    documented = set(re.findall(r'id="trio_mcp(?:\.[a-z]+)?\.(\w+)"', text))
    assert set(names) - documented == set()
    assert 'href="https://trio.readthedocs.io/en/stable/reference-core.html#trio.CancelScope"' in text
    assert 'href="clients.html#trio_mcp.Client.call_tool"' in text


LOOK = """<!doctype html><body><script>
async function look(path, width, found) {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.style.width = width + "px";
  frame.src = path;
  await new Promise(loaded => frame.addEventListener("load", loaded));
  const seen = await found(frame.contentDocument);
  frame.remove();
  return seen;
}
async function results(page) {
  while (!page.querySelector("#search-results").textContent.includes("Search finished"))
    await new Promise(later => setTimeout(later, 50));
  return [...page.querySelectorAll("#search-results li > a")].map(link => link.getAttribute("href"));
}
async function outline(page) {
  const outline = page.querySelector(".toc-drawer").getBoundingClientRect();
  return outline.width > 100 && outline.right <= page.documentElement.clientWidth + 1;
}
async function cut(page) {
  return [...page.querySelectorAll(".highlight pre")]
    .filter(block => block.scrollWidth > block.clientWidth + 1).map(block => block.textContent.slice(0, 60));
}
async function overflow(page) {
  const width = page.documentElement.clientWidth;
  return page.documentElement.scrollWidth > width ? page.documentElement.scrollWidth - width : 0;
}
(async () => {
  const seen = {};
  for (const [path, width, found] of PATHS) seen[path] = await look(path, width, found);
  document.title = "done";
  document.body.textContent = JSON.stringify(seen);
})();
</script></body>"""
"""A page that opens others in a frame of some width, and writes down what it sees there."""


def looked_at(site: Path, folder: Path, *paths: tuple[str, int, str]) -> dict[str, Any]:
    """What Chromium sees on pages of the site, each with its width and the function of `LOOK` that is asked."""
    asked = ", ".join(f"[{json.dumps(path)}, {width}, {found}]" for path, width, found in paths)
    page = LOOK.replace("PATHS", f"[{asked}]").encode()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/look":
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(page)
            else:
                with suppress(ConnectionError):  # of a frame that is gone
                    super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            options = ("--dump-dom", "--virtual-time-budget=100000", f"--user-data-dir={folder}")
            command = [str(CHROMIUM), *OPTIONS, *options, f"http://127.0.0.1:{server.server_port}/look"]
            seen = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False).stdout
        finally:
            server.shutdown()
            thread.join()
    assert "<title>done</title>" in seen
    return json.loads(unescape(re.sub(r"<[^>]*>", "", seen.partition("<body>")[2])))


@needs_chromium
def test_site_search_for_each_term_finds_its_page_first(site: Path, tmp_path: Path) -> None:
    wanted = {term: page for page, terms in CONTENTS["TERMS"].items() for term in terms}
    paths = {f"search.html?q={quote_plus(term)}": term for term in wanted}
    found = looked_at(site, tmp_path, *((path, 1200, "results") for path in paths))
    first = {paths[path]: links[0].partition(".html")[0] if links else "" for path, links in found.items()}
    assert len(first) > 90
    assert {term: page for term, page in first.items() if page != wanted[term]} == {}


def test_site_page_expected_for_a_search_term_contains_the_term() -> None:
    texts = {page: (ROOT / {"changelog": "CHANGELOG.md"}.get(page, f"docs/{page}.md")) for page in CONTENTS["TERMS"]}
    assert [
        (page, term)
        for page, terms in CONTENTS["TERMS"].items()
        for term in terms
        if term.lower() not in " ".join(texts[page].read_text().lower().split())
    ] == []


@needs_chromium
def test_site_page_with_sections_shows_its_outline_in_a_window_of_1280_pixels(site: Path, tmp_path: Path) -> None:
    pages = [f"{page}.html" for section in CONTENTS["SECTIONS"].values() for page in section]
    with_sections = [page for page in pages if (site / page).read_text().count("<h2") > 1]
    seen = looked_at(site, tmp_path, *((page, 1280, "outline") for page in with_sections))
    assert len(seen) > 40
    assert {page for page, is_shown in seen.items() if not is_shown} == set()


@needs_chromium
def test_code_on_user_pages_is_not_cut_off_in_a_window_of_1280_pixels(site: Path, tmp_path: Path) -> None:
    sections = {name: pages for name, pages in CONTENTS["SECTIONS"].items() if name != "Contributing"}
    paths = ["index.html", *(f"{page}.html" for pages in sections.values() for page in pages)]
    seen = looked_at(site, tmp_path, *((path, 1280, "cut") for path in paths))
    assert {page: blocks for page, blocks in seen.items() if blocks} == {}


@needs_chromium
def test_site_pages_fit_the_width_of_a_phone_screen(site: Path, tmp_path: Path) -> None:
    paths = [page.relative_to(site).as_posix() for page in site.rglob("*.html") if "files" not in page.parts]
    seen = looked_at(site, tmp_path, *((path, 390, "overflow") for path in paths))
    assert len(seen) > 30
    assert {path: pixels for path, pixels in seen.items() if pixels} == {}


def test_broken_link_fails_the_site_build(tmp_path: Path) -> None:
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
