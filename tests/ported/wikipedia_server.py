"""An encyclopedia: a port of `wikipedia-mcp` (github.com/rudra-ravi/wikipedia-mcp, written with fastmcp), over any
client that blocks, as its own does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field

from trio_mcp import Server
from trio_mcp.auth import Principal
from trio_mcp.types import ToolAnnotations

__all__ = ["Encyclopedia", "make_server", "one_token"]

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
Data = dict[str, Any]


class Encyclopedia(Protocol):
    language: str

    def check(self) -> Data: ...
    def search(self, query: str, limit: int) -> list[Data]: ...
    def article(self, title: str) -> Data | None: ...
    def summary(self, title: str) -> str | None: ...
    def summary_for_query(self, title: str, query: str, max_length: int) -> str: ...
    def summary_of_section(self, title: str, section: str, max_length: int) -> str: ...
    def facts(self, title: str, topic: str | None, count: int) -> list[str]: ...
    def related(self, title: str, limit: int) -> list[Data]: ...
    def sections(self, title: str) -> list[Data]: ...
    def links(self, title: str) -> list[str]: ...
    def coordinates(self, title: str) -> Data: ...


class Result(BaseModel):
    """One article that was found."""

    title: str
    snippet: str = ""
    pageid: int = 0
    wordcount: int = 0
    timestamp: str = ""


class Found(BaseModel):
    query: str
    results: list[Result]
    status: str
    count: int | None = None
    language: str | None = None
    message: str | None = None


class Summary(BaseModel):
    title: str
    summary: str | None = None
    error: str | None = None


def one_token(token: str) -> Callable[[str], Any]:
    """A verifier of `Protected` for one secret token."""

    async def verify(given: str) -> Principal | None:
        return Principal(subject="owner") if given == token else None

    return verify


class Wikipedia:
    """The tools, which are resources as well."""

    def __init__(self, pedia: Encyclopedia) -> None:
        self.pedia = pedia

    def search_wikipedia(self, query: str, limit: int = 10) -> Found:
        """Find articles."""
        if not query.strip():
            return Found(query=query, results=[], status="error", message="nothing to look for")
        found = [Result(**each) for each in self.pedia.search(query, min(limit, 500) if limit > 0 else 10)]
        language = self.pedia.language
        if not found:
            return Found(
                query=query, results=[], status="no_results", count=0, language=language, message="No results."
            )
        return Found(query=query, results=found, status="success", count=len(found), language=language)

    def test_wikipedia_connectivity(self) -> Data:
        """Say whether the encyclopedia can be reached."""
        return self.pedia.check()

    def get_article(self, title: str) -> Data:
        """Read a whole article."""
        return self.pedia.article(title) or {"title": title, "exists": False, "error": "No such article"}

    def get_summary(self, title: str) -> Summary:
        """Read the summary of an article."""
        summary = self.pedia.summary(title)
        return Summary(title=title, summary=summary, error=None if summary else "No such article")

    def summarize_article_for_query(self, title: str, query: str, max_length: int = 250) -> Data:
        """Read what an article says of something."""
        return {"title": title, "query": query, "summary": self.pedia.summary_for_query(title, query, max_length)}

    def summarize_article_section(self, title: str, section_title: str, max_length: int = 150) -> Data:
        """Read the summary of a section."""
        summary = self.pedia.summary_of_section(title, section_title, max_length)
        return {"title": title, "section_title": section_title, "summary": summary}

    def extract_key_facts(
        self,
        title: str,
        topic_within_article: Annotated[str, Field(description="A topic, or all.")] = "",
        count: int = 5,
    ) -> Data:
        """List facts of an article."""
        facts = self.pedia.facts(title, topic_within_article.strip() or None, count)
        return {"title": title, "topic_within_article": topic_within_article, "facts": facts}

    def get_related_topics(self, title: str, limit: int = 10) -> Data:
        """List what is near to an article."""
        return {"title": title, "related_topics": self.pedia.related(title, limit)}

    def get_sections(self, title: str) -> Data:
        """List the sections of an article."""
        return {"title": title, "sections": self.pedia.sections(title)}

    def get_links(self, title: str) -> Data:
        """List the links of an article."""
        return {"title": title, "links": self.pedia.links(title)}

    def get_coordinates(self, title: str) -> Data:
        """Tell where on Earth the subject of an article is."""
        return self.pedia.coordinates(title)


def make_server(pedia: Encyclopedia) -> Server:
    server, wikipedia = Server("Wikipedia"), Wikipedia(pedia)
    for tool in (
        wikipedia.search_wikipedia,
        wikipedia.test_wikipedia_connectivity,
        wikipedia.get_article,
        wikipedia.get_summary,
        wikipedia.summarize_article_for_query,
        wikipedia.summarize_article_section,
        wikipedia.extract_key_facts,
        wikipedia.get_related_topics,
        wikipedia.get_sections,
        wikipedia.get_links,
        wikipedia.get_coordinates,
    ):
        for name in (tool.__name__, f"wikipedia_{tool.__name__}"):
            server.tool(name=name, annotations=READS)(tool)

    @server.resource("wikipedia://search/{query}")
    def search(query: str) -> Data:
        return {"query": query, "results": pedia.search(query, 10)}

    for uri, read in (
        ("article/{title}", wikipedia.get_article),
        ("summary/{title}", wikipedia.get_summary),
        ("summary/{title}/query/{query}/length/{max_length}", wikipedia.summarize_article_for_query),
        ("summary/{title}/section/{section_title}/length/{max_length}", wikipedia.summarize_article_section),
        ("sections/{title}", wikipedia.get_sections),
        ("links/{title}", wikipedia.get_links),
        ("facts/{title}/topic/{topic_within_article}/count/{count}", wikipedia.extract_key_facts),
        ("coordinates/{title}", wikipedia.get_coordinates),
    ):
        server.resource(f"wikipedia://{uri}")(read)
    return server
