"""Pages of the web as Markdown, for a model and for its user: a port of the server `fetch` of the reference collection
(github.com/modelcontextprotocol/servers, written with `MCPServer` of the Python SDK), but for its converter of HTML."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser

import httpx2
import trio
from pydantic import AnyUrl, Field

from trio_mcp import Server, ToolError
from trio_mcp.types import ToolAnnotations

__all__ = ["make_server"]

ENDED = "<error>There is no more.</error>"


class Texts(HTMLParser):
    """The texts of a page, its headings marked."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.mark = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.mark = "#" * int(tag[1]) + " " if tag in {"h1", "h2", "h3"} else ""

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(self.mark + data.strip())


def as_markdown(page: str) -> str:
    parser = Texts()
    parser.feed(page)
    return "\n\n".join(parser.texts) or "<error>The page could not be simplified</error>"


async def refuse_private(request: httpx2.Request) -> None:
    """Refuse each request, behind redirects, too, to an address that is not on the public internet."""
    host = request.url.host
    try:
        found = await trio.socket.getaddrinfo(host, None)
    except socket.gaierror:
        return  # the request fails by itself
    for *_, address in found:
        if not ipaddress.ip_address(address[0]).is_global:
            raise ToolError(f"{host} is {address[0]}, which is no public address")


def make_server(
    http: httpx2.AsyncClient,
    *,
    robots: bool = True,
    private: bool = False,
    simplify: Callable[[str], str] = as_markdown,
) -> Server:
    """``http`` sends the requests: proxies and the user agent are its own."""
    if not private:
        http.event_hooks["request"].append(refuse_private)

    async def get(url: str) -> httpx2.Response:
        try:
            return await http.get(url, follow_redirects=True, timeout=30)
        except httpx2.HTTPError as error:
            raise ToolError(f"{url} could not be read: {error!r}") from error

    async def allowed(url: str) -> None:
        place = urlsplit(url)
        robots_url = urlunsplit((place.scheme, place.netloc, "/robots.txt", "", ""))
        rules = await get(robots_url)
        if rules.status_code in (401, 403):
            raise ToolError(f"{robots_url} has status {rules.status_code}: the user may use the prompt `fetch` instead")
        if 400 <= rules.status_code < 500:
            return
        parser = RobotFileParser()
        parser.parse(rules.text.splitlines())
        if not parser.can_fetch(http.headers["user-agent"], url):
            raise ToolError(f"{robots_url} refuses {url}: the user may use the prompt `fetch` instead")

    async def contents(url: str, raw: bool = False) -> tuple[str, str]:
        """What is said before the text of the page, and the text."""
        page = await get(url)
        if page.status_code >= 400:
            raise ToolError(f"{url} has status {page.status_code}")
        kind = page.headers.get("content-type", "")
        if not raw and ("<html" in page.text[:100] or "text/html" in kind or not kind):
            return "", simplify(page.text)
        return f"{kind} is no HTML; as it is:\n", page.text

    server = Server("mcp-fetch")

    @server.tool(
        description="Read a page of the web, as Markdown if it is HTML.",
        annotations=ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=True
        ),
    )
    async def fetch(
        url: Annotated[AnyUrl, Field(description="The address of the page.")],
        max_length: Annotated[int, Field(ge=1, le=999999, description="How many characters at most.")] = 5000,
        start_index: Annotated[int, Field(ge=0, description="The first character, to go on reading.")] = 0,
        raw: Annotated[bool, Field(description="The page as it is.")] = False,
    ) -> str:
        if robots:
            await allowed(str(url))
        before, text = await contents(str(url), raw)
        end = start_index + max_length
        part = text[start_index:end] or ENDED
        if end < len(text):
            part += f"\n\n<error>There is more: call again with start_index {end}.</error>"
        return f"{before}Contents of {url}:\n{part}"

    @server.prompt(name="fetch", description="Read a page of the web, as Markdown")
    async def fetch_for_the_user(url: Annotated[str, Field(description="The address of the page.")]) -> str:
        try:
            return "".join(await contents(url))
        except ToolError as error:
            return str(error)

    return server
