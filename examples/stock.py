"""A server with an app: the stock of a shop, which hosts with apps show as a dashboard, and others as text.

    python -m examples.stock

The model calls ``stock``. The dashboard, ``stock.html``, shows the result; its buttons call ``order``, which the model
does not see.
"""

from pathlib import Path

import attrs
import trio

from trio_mcp import UI, AppPolicy, Apps, Server, ToolError, run

VIEW = "ui://stock/dashboard"
PAGE = Path(__file__).with_suffix(".html")
LOT = 10


@attrs.frozen
class Item:
    """An item of the shop; there should be ``least`` pieces of it."""

    name: str
    pieces: int
    least: int


@attrs.frozen
class Stock:
    """All items."""

    items: list[Item]


def stock_server() -> Server:
    """A shop with some items in it."""
    server = Server("stock", extensions=[Apps()])
    items = {
        name: Item(name, pieces, least)
        for name, pieces, least in [("Apples", 42, 20), ("Bread", 7, 15), ("Cheese", 18, 10), ("Dates", 3, 5)]
    }

    @server.tool(ui=UI(VIEW))
    async def stock() -> Stock:
        """Show how much there is of each item."""
        return Stock(list(items.values()))

    @server.tool(ui=UI(VIEW, visible_to=("app",)))
    async def order(name: str) -> Stock:
        """Order ten more pieces of an item."""
        if name not in items:
            raise ToolError(f"there is no {name[:50]!r} in this shop")
        items[name] = attrs.evolve(items[name], pieces=items[name].pieces + LOT)
        return Stock(list(items.values()))

    @server.resource(VIEW, name="Stock", app=AppPolicy(prefers_border=True))
    async def dashboard() -> str:
        """The stock as a chart."""
        return await trio.Path(PAGE).read_text(encoding="utf-8")

    return server


server = stock_server()

if __name__ == "__main__":
    run(server)
