"""The tools of the servers on asyncio: redis-py and httpx2."""

import asyncio
import json

import httpx2
from redis.asyncio import Redis
from shop import API_URL, LIMITS, POPULAR, REDIS_URL, cart, cart_of, confirmed, found, history_of, limit_of, order

store = Redis.from_url(REDIS_URL, decode_responses=True)
http = httpx2.AsyncClient(base_url=API_URL, limits=LIMITS)


async def search_products(
    category: str = "Electronics", min_price: float = 50.0, max_price: float = 500.0, limit: int = 10
) -> str:
    """Search for products by category and price, with their ranks."""
    asked = {"category": category, "min_price": min_price, "max_price": max_price, "limit": limit}
    response, popular = await asyncio.gather(
        http.get("/products/search", params=asked), store.zrange(POPULAR, 0, 9, desc=True)
    )
    return found(category, response.json(), popular)


async def get_user_cart(user_id: str = "user-00042") -> str:
    """Return the cart of a user, with the latest orders."""
    kept = await store.hgetall(cart_of(user_id))
    items = json.loads(kept["items"])
    response, history = await asyncio.gather(
        http.get(f"/products/{items[0]['product_id']}"), store.lrange(history_of(user_id), 0, 4)
    )
    response.json()
    return cart(user_id, kept, items, history)


async def checkout(user_id: str, items: list[dict[str, int]]) -> str:
    """Buy these items."""
    pipeline = store.pipeline(transaction=False)
    pipeline.incr(limit_of(user_id))
    pipeline.rpush(history_of(user_id), order(user_id, items))
    pipeline.zincrby(POPULAR, 1, f"product:{items[0]['product_id']}")
    response, (count, *_) = await asyncio.gather(
        http.post("/cart/calculate", json={"user_id": user_id, "items": items}), pipeline.execute()
    )
    return confirmed(user_id, items, response.json(), count)


TOOLS = (search_products, get_user_cart, checkout)
