"""Five existing servers, ported with the migration pages of `docs/get-started` only: each tool does what the
original's does. `originals.json` has the tools of the originals, as they list them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from tests.patience import PATIENCE
from tests.ported import feedback_server, fetch_server, memory_server, shell_server, wikipedia_server
from tests.serving.http.raw import served

from trio_mcp import Client, HTTPError, PeerError, Server, open_http, open_memory, open_stdio
from trio_mcp.auth import Bearer, Protected
from trio_mcp.types import ElicitResult

HERE = Path(__file__).parent
ORIGINALS: dict[str, Any] = json.loads((HERE / "originals.json").read_text())
PAGE = "<html><head><title>Tea</title></head><body><h1>Tea</h1><p>Tea is a drink.</p></body></html>"


def web(request: httpx2.Request) -> httpx2.Response:
    """In place of the network."""
    match request.url.path:
        case "/robots.txt":
            return httpx2.Response(200, text="User-agent: *\nDisallow: /private")
        case "/moved":
            return httpx2.Response(302, headers={"Location": "http://127.0.0.1/tea"})
        case "/data":
            return httpx2.Response(200, text="0123456789", headers={"Content-Type": "text/plain"})
        case "/none":
            return httpx2.Response(404)
        case _:
            return httpx2.Response(200, text=PAGE, headers={"Content-Type": "text/html"})


def browser() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(web), headers={"User-Agent": "tester"})


class Entries:
    """A memory that finds words."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, memory_server.Entry]] = []

    def store(self, entry: memory_server.Entry, collection: str) -> None:
        self.kept.append((collection, entry))

    def search(
        self, query: str, collection: str, limit: int, filter: dict[str, Any] | None
    ) -> list[memory_server.Entry]:
        found = [entry for place, entry in self.kept if place == collection and query in entry.content]
        return [entry for entry in found if filter is None or entry.metadata == filter][:limit]


class Encyclopedia:
    """An encyclopedia of one article."""

    language = "en"
    text = "Tea is a drink. It is made of leaves."

    def check(self) -> dict[str, Any]:
        return {"status": "success", "url": "https://example.org", "language": self.language}

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        return [{"title": "Tea", "pageid": 1}][:limit] if query in self.text else []

    def article(self, title: str) -> dict[str, Any] | None:
        return {"title": title, "exists": True, "text": self.text} if title == "Tea" else None

    def summary(self, title: str) -> str | None:
        return self.text[:15] if title == "Tea" else None

    def summary_for_query(self, title: str, query: str, max_length: int) -> str:
        return self.text[self.text.index(query) :][:max_length]

    def summary_of_section(self, title: str, section: str, max_length: int) -> str:
        return f"{section} of {title}"[:max_length]

    def facts(self, title: str, topic: str | None, count: int) -> list[str]:
        return [f"{title}: {topic}"] * count

    def related(self, title: str, limit: int) -> list[dict[str, Any]]:
        return [{"title": "Coffee", "type": "link"}][:limit]

    def sections(self, title: str) -> list[dict[str, Any]]:
        return [{"title": "History", "level": 0}]

    def links(self, title: str) -> list[str]:
        return ["Coffee"]

    def coordinates(self, title: str) -> dict[str, Any]:
        return {"title": title, "exists": True, "coordinates": None}


def ports() -> dict[str, Server]:
    return {
        "mcp-server-fetch": fetch_server.make_server(browser()),
        "mcp-shell-server": shell_server.make_server("echo"),
        "mcp-server-qdrant": memory_server.make_server(Entries()),
        "wikipedia-mcp": wikipedia_server.make_server(Encyclopedia()),
        "interactive-feedback-mcp": feedback_server.server,
    }


def outline(schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters with their types and defaults, and those that are required."""
    parameters: dict[str, Any] = {}
    for name, each in schema.get("properties", {}).items():
        kinds = each.get("type") or sorted(kind["type"] for kind in each["anyOf"])
        parameters[name] = [kinds if isinstance(kinds, str) else sorted(kinds), each.get("default")]
    return {"parameters": parameters, "required": sorted(schema.get("required", []))}


@pytest.mark.parametrize("name", ORIGINALS)
async def test_ported_example_server_has_the_tools_and_parameters_of_the_original(name: str) -> None:
    async with open_memory(ports()[name]) as client:
        listed = {tool.name: outline(tool.input_schema) async for tool in client.list_tools()}
    assert listed == {tool["name"]: outline(tool["inputSchema"]) for tool in ORIGINALS[name]}


async def call(client: Client, tool: str, /, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    return f"failed: {result.text}" if result.is_error else result.text


async def test_ported_fetch_server_returns_parts_of_pages_that_robots_txt_allows() -> None:
    async with open_memory(fetch_server.make_server(browser())) as client:
        site = "http://93.184.216.34"
        assert (
            await call(client, "fetch", url=f"{site}/tea")
            == f"Contents of {site}/tea:\nTea\n\n# Tea\n\nTea is a drink."
        )
        part = await call(client, "fetch", url=f"{site}/data", max_length=4, start_index=2)
        assert "text/plain is no HTML" in part
        assert f"{site}/data:\n2345\n\n<error>There is more: call again with start_index 6" in part
        assert "There is no more" in await call(client, "fetch", url=f"{site}/data", start_index=10)
        assert PAGE in await call(client, "fetch", url=f"{site}/tea", raw=True)
        assert "refuses" in await call(client, "fetch", url=f"{site}/private/tea")
        assert "has status 404" in await call(client, "fetch", url=f"{site}/none")
        assert "no public address" in await call(client, "fetch", url="http://127.0.0.1/tea")
        assert "no public address" in await call(client, "fetch", url=f"{site}/moved")
        assert "Invalid arguments" in await call(client, "fetch", url=f"{site}/tea", max_length=0)
        prompt = await client.get_prompt("fetch", {"url": f"{site}/private/tea"})
        assert "Tea is a drink." in str(prompt.messages[0].content)
        assert "has status 404" in str((await client.get_prompt("fetch", {"url": f"{site}/none"})).messages[0].content)
        for wrong in ("none", "fetch"):
            with pytest.raises(PeerError, match="-32602"):
                await client.get_prompt(wrong, {})


async def test_ported_shell_server_runs_allowed_commands_and_pipelines(tmp_path: Path) -> None:
    async with open_memory(shell_server.make_server("echo,cat,false", "tr.*", most=1000)) as client:
        (tmp_path / "a").write_text("file a")
        assert await call(client, "shell_execute", command=["cat", "a"], directory=str(tmp_path)) == "file a"
        assert await call(client, "shell_execute", command=["cat"], stdin="in") == "in"
        assert await call(client, "shell_execute", command=["echo", "a", "|", "tr", "a", "b"]) == "b\n"
        assert "exit status 1" in await call(client, "shell_execute", command=["false"])
        assert "not allowed: rm" in await call(client, "shell_execute", command=["echo", "|", "rm"])
        assert "shells: &&" in await call(client, "shell_execute", command=["echo", "&&", "echo"])
        assert "there is no directory" in await call(
            client, "shell_execute", command=["echo"], directory=str(tmp_path / "b")
        )
        assert "more than 1000 bytes" in await call(client, "shell_execute", command=["cat", "/dev/zero"])
        assert (await call(client, "shell_execute", command=[])).startswith("failed: ")


async def test_ported_shell_command_ends_at_its_timeout_or_when_its_call_is_cancelled(tmp_path: Path) -> None:
    async with open_memory(shell_server.make_server("sh")) as client, trio.open_nursery() as nursery:
        assert "no end after 1" in await call(client, "shell_execute", command=["sh", "-c", "sleep 1000"], timeout=1)
        told = tmp_path / "told"
        os.mkfifo(told)
        script = f"echo $$ > {told}; exec sleep 1000"
        nursery.start_soon(client.call_tool, "shell_execute", {"command": ["sh", "-c", script]})
        with trio.fail_after(PATIENCE):
            process = os.pidfd_open(int(await trio.Path(told).read_text()))
        nursery.cancel_scope.cancel(reason="the caller has left")
    try:
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(process)  # it has ended
    finally:
        os.close(process)


@pytest.mark.parametrize("collection", [None, "notes"])
async def test_ported_memory_server_stores_and_finds_entries(collection: str | None) -> None:
    place = {} if collection else {"collection_name": "notes"}
    logs: list[Any] = []
    server = memory_server.make_server(Entries(), collection=collection, filters=True)
    async with open_memory(server, era="legacy", on_log=lambda message: logs.append(message.data)) as client:
        await client.set_log_level("debug")
        told = await call(client, "qdrant-store", information="tea is hot", metadata={"by": "Ann"}, **place)
        assert told == "Remembered: tea is hot in collection notes"
        await call(client, "qdrant-store", information="tea is old", **place)
        found = (
            await client.call_tool("qdrant-find", {"query": "tea", "query_filter": {"by": "Ann"}, **place})
        ).content
        assert [getattr(block, "text", None) for block in found] == [
            "Results for the query 'tea'",
            '<entry><content>tea is hot</content><metadata>{"by": "Ann"}</metadata></entry>',
        ]
        assert await call(client, "qdrant-find", query="milk", **place) == ""
    assert logs[0] == "keeping tea is hot"
    async with open_memory(memory_server.make_server(Entries(), read_only=True)) as client:
        assert [tool.name async for tool in client.list_tools()] == ["qdrant-find"]


CALLS: dict[str, dict[str, Any]] = {
    "search_wikipedia": {"query": "leaves"},
    "test_wikipedia_connectivity": {},
    "get_article": {"title": "Tea"},
    "get_summary": {"title": "Tea"},
    "summarize_article_for_query": {"title": "Tea", "query": "made", "max_length": 7},
    "summarize_article_section": {"title": "Tea", "section_title": "History"},
    "extract_key_facts": {"title": "Tea", "count": 1},
    "get_related_topics": {"title": "Tea"},
    "get_sections": {"title": "Tea"},
    "get_links": {"title": "Tea"},
    "get_coordinates": {"title": "Tea"},
}


async def test_ported_wikipedia_server_gives_equal_answers_by_both_names_of_a_tool() -> None:
    async with open_memory(wikipedia_server.make_server(Encyclopedia())) as client:
        answers: dict[str, Any] = {}
        for tool, arguments in CALLS.items():
            answers[tool] = (await client.call_tool(tool, arguments)).structured_content
            assert (await client.call_tool(f"wikipedia_{tool}", arguments)).structured_content == answers[tool]
        assert answers["search_wikipedia"]["results"][0]["title"] == "Tea"
        assert answers["get_summary"] == {"title": "Tea", "summary": "Tea is a drink.", "error": None}
        assert answers["summarize_article_for_query"]["summary"] == "made of"
        assert answers["extract_key_facts"]["facts"] == ["Tea: None"]
        assert (await client.call_tool("search_wikipedia", {"query": " "})).structured_content["status"] == "error"
        for uri, tool in (
            ("article/Tea", "get_article"),
            ("summary/Tea", "get_summary"),
            ("summary/Tea/query/made/length/7", "summarize_article_for_query"),
            ("summary/Tea/section/History/length/150", "summarize_article_section"),
            ("sections/Tea", "get_sections"),
            ("links/Tea", "get_links"),
            ("coordinates/Tea", "get_coordinates"),
        ):
            assert json.loads((await client.read_resource(f"wikipedia://{uri}")).text) == answers[tool]
        facts = json.loads((await client.read_resource("wikipedia://facts/Tea/topic/leaves/count/2")).text)
        assert facts["facts"] == ["Tea: leaves"] * 2
        assert (
            json.loads((await client.read_resource("wikipedia://search/leaves")).text)["results"][0]["title"] == "Tea"
        )


async def test_ported_wikipedia_server_requires_the_token() -> None:
    url = "http://127.0.0.1:8000/mcp"
    issuers = ["https://login.example.com"]
    auth = Protected(resource=url, authorization_servers=issuers, verifier=wikipedia_server.one_token("secret"))
    async with served(wikipedia_server.make_server(Encyclopedia()), auth=auth) as endpoint:
        async with open_http(f"http://127.0.0.1:{endpoint.port}/mcp", auth=Bearer("secret")) as client:
            assert "Coffee" in await call(client, "get_links", title="Tea")
        with pytest.raises(HTTPError, match="401"):
            async with open_http(f"http://127.0.0.1:{endpoint.port}/mcp"):
                pass


async def test_ported_feedback_server_elicits_from_the_user_over_stdio() -> None:
    choice = {"answer": "red", "other": "dark"}
    answers: list[Any] = [choice, {}, ElicitResult("decline"), ElicitResult("cancel")]
    asked = {"message": "Which?", "predefined_options": ["red", "blue"]}
    command = [sys.executable, str(HERE / "feedback_server.py")]
    async with open_stdio(command, elicitation=lambda question: answers.pop(0)) as client:
        told = [
            (await client.call_tool("interactive_feedback", arguments)).structured_content
            for arguments in (asked, {"message": "Ready?"}, asked, asked)
        ]
    assert told == [
        {"interactive_feedback": "red\ndark"},
        {"interactive_feedback": ""},
        {"interactive_feedback": "", "status": "declined"},
        {"interactive_feedback": "", "status": "cancelled"},
    ]


async def test_ported_feedback_server_returns_an_error_without_elicitation_support() -> None:
    async with open_memory(feedback_server.server) as client:
        result = await client.call_tool("interactive_feedback", {"message": "Which?"})
    assert result.structured_content["status"] == "error"
