"""What the tools of the shop have in common in all Python servers: the keys, and the texts of the answers."""

import json
import os
import time

import httpx2

API_URL = os.environ["API_URL"]
REDIS_URL = os.environ["REDIS_URL"]
POPULAR = "shop:popular"
LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
"""A connection for each user: the default keeps 20, and would make the others anew."""


def cart_of(user_id):
    return f"shop:cart:{user_id}"


def history_of(user_id):
    return f"shop:history:{user_id}"


def limit_of(user_id):
    return f"shop:limit:user-{int(user_id.rpartition('-')[2]) % 100:05}"


def found(category, answer, popular):
    ids = [int(member.partition(":")[2]) for member in popular]
    ranks = {product: rank for rank, product in enumerate(ids, 1)}
    products = [
        {name: product[name] for name in ("id", "sku", "name", "price", "rating")}
        | {"popularity_rank": ranks.get(product["id"], 0)}
        for product in answer["products"]
    ]
    return json.dumps(
        {"category": category, "total_found": answer["total_found"], "products": products, "top10_popular_ids": ids}
    )


def cart(user_id, kept, items, history):
    return json.dumps(
        {
            "user_id": user_id,
            "cart": {"items": items, "item_count": len(items), "estimated_total": float(kept["total"])},
            "recent_history": [json.loads(entry) for entry in history],
        }
    )


def order(user_id, items):
    now = int(time.time())
    return json.dumps({"order_id": f"ORD-{user_id}-{now}", "items": items, "ts": now})


def confirmed(user_id, items, bill, count):
    return json.dumps(
        {
            "order_id": bill["order_id"],
            "user_id": user_id,
            "total": bill["total"],
            "items_count": len(items),
            "rate_limit_count": count,
            "status": "confirmed",
        }
    )
