"""The shop, written with trio-mcp, coredis and httpx2."""

import json
from functools import partial

import coredis
import httpx2
import trio
from marking import listening
from shop import API_URL, LIMITS, POPULAR, REDIS_URL, cart, cart_of, confirmed, found, history_of, limit_of, order

from trio_mcp import Server, serve_http

server = Server("shop")
store = coredis.Redis.from_url(REDIS_URL, decode_responses=True)
http = httpx2.AsyncClient(base_url=API_URL, limits=LIMITS)


@server.tool
async def search_products(
    category: str = "Electronics", min_price: float = 50.0, max_price: float = 500.0, limit: int = 10
) -> str:
    """Search for products by category and price, with their ranks."""
    popular = []

    async def rank():
        popular.extend(await store.zrange(POPULAR, 0, 9, rev=True))

    asked = {"category": category, "min_price": min_price, "max_price": max_price, "limit": limit}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rank)
        response = await http.get("/products/search", params=asked)
    return found(category, response.json(), popular)


@server.tool
async def get_user_cart(user_id: str = "user-00042") -> str:
    """Return the cart of a user, with the latest orders."""
    kept = await store.hgetall(cart_of(user_id))
    items = json.loads(kept["items"])
    history = []

    async def look():
        history.extend(await store.lrange(history_of(user_id), 0, 4))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        response = await http.get(f"/products/{items[0]['product_id']}")
    response.json()
    return cart(user_id, kept, items, history)


@server.tool
async def checkout(user_id: str, items: list[dict[str, int]]) -> str:
    """Buy these items."""
    count = 0

    async def keep():
        nonlocal count
        async with store.pipeline(transaction=False) as pipeline:
            counted = pipeline.incr(limit_of(user_id))
            pipeline.rpush(history_of(user_id), [order(user_id, items)])
            pipeline.zincrby(POPULAR, f"product:{items[0]['product_id']}", 1)
        count = await counted

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        response = await http.post("/cart/calculate", json={"user_id": user_id, "items": items})
    return confirmed(user_id, items, response.json(), count)


async def main():
    async with store, http, trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0, stateless=True))
        listening(listeners[0].socket.getsockname()[1])


trio.run(main)
