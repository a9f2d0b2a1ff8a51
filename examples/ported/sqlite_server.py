"""A database of SQLite, and a memo of insights: after the sqlite server of the reference collection.

    trio-mcp run examples/ported/sqlite_server.py -- PATH_OF_THE_DATABASE

A query runs in a thread. A cancel of its call interrupts SQLite, so that an endless query ends with its call.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import attrs
import trio
from msgspec import Meta

from trio_mcp import RequestContext, Server, ToolError
from trio_mcp.types import ToolAnnotations

_MOST_ROWS = 1_000


@attrs.define
class Database:
    """A connection that one call at a time uses, and the insights so far."""

    connection: sqlite3.Connection
    insights: list[str] = attrs.field(factory=list[str])
    turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def run(self, query: str, *, reads: bool) -> list[dict[str, Any]]:
        """Run one statement, and return its rows. Raises `ToolError` for what SQLite refuses."""

        def execute() -> list[dict[str, Any]]:
            with self.connection:
                self.connection.execute(f"PRAGMA query_only = {int(reads)}")
                rows = self.connection.execute(query).fetchmany(_MOST_ROWS)
                return [{key: row[key] for key in row.keys()} for row in rows]  # noqa: SIM118, a row yields values

        async with self.turn:
            try:
                return await trio.to_thread.run_sync(execute, abandon_on_cancel=True)
            except sqlite3.Error as error:
                raise ToolError(f"SQLite refuses: {error}") from None
            except trio.Cancelled:
                self.connection.interrupt()  # the thread ends at once, and nobody waits for its result
                raise


@asynccontextmanager
async def lifespan(_: Server) -> AsyncGenerator[Database]:
    connection = sqlite3.connect(sys.argv[1] if len(sys.argv) > 1 else ":memory:", check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        yield Database(connection)
    finally:
        connection.close()


server = Server("sqlite", "1.0", lifespan=lifespan)
Context = RequestContext[Database]
Query = Annotated[str, Meta(min_length=1, max_length=100_000, description="One statement of SQL.")]
Table = Annotated[str, Meta(min_length=1, max_length=200, description="The name of a table.")]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


@server.tool(annotations=READS)
async def read_query(query: Query, ctx: Context) -> list[dict[str, Any]]:
    """Run a query that changes nothing."""
    return await ctx.lifespan.run(query, reads=True)


@server.tool
async def write_query(query: Query, ctx: Context) -> str:
    """Run a statement that changes rows."""
    await ctx.lifespan.run(query, reads=False)
    return f"changed {ctx.lifespan.connection.total_changes} rows so far"


@server.tool
async def create_table(query: Query, ctx: Context) -> str:
    """Create a table."""
    if not query.strip().upper().startswith("CREATE TABLE"):
        raise ToolError("a table is created by CREATE TABLE")
    await ctx.lifespan.run(query, reads=False)
    return "created"


@server.tool(annotations=READS)
async def list_tables(ctx: Context) -> list[str]:
    """List the tables."""
    rows = await ctx.lifespan.run("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name", reads=True)
    return [row["name"] for row in rows]


@server.tool(annotations=READS)
async def describe_table(table_name: Table, ctx: Context) -> list[dict[str, Any]]:
    """Show the columns of a table."""
    name = table_name.replace('"', '""')
    return await ctx.lifespan.run(f'PRAGMA table_info("{name}")', reads=True)


@server.tool
async def append_insight(insight: str, ctx: Context) -> str:
    """Add an insight to the memo."""
    ctx.lifespan.insights.append(insight)
    server.resource_updated("memo://insights")
    return "added"


@server.resource("memo://insights", name="Insights", mime_type="text/plain")
async def memo(ctx: Context) -> str:
    """The insights so far."""
    return "\n".join(f"- {insight}" for insight in ctx.lifespan.insights) or "There are no insights yet."


@server.prompt(name="mcp-demo")
def demo(topic: str) -> str:
    """Begin an analysis of made-up data about a topic."""
    return (
        f"Let us look at data about {topic}. Create tables with a few rows each, read them in three ways, "
        "and add each finding to the memo with append_insight. Say in the end what memo://insights holds."
    )
