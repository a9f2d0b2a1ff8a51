"""The shop's catalog: a hundred thousand products, each made from its number."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["CATEGORIES", "PRODUCTS", "priced", "product", "search"]

PRODUCTS = 100_000
CATEGORIES = (
    *("Electronics", "Books", "Clothing", "Sports", "Home", "Garden", "Toys", "Food", "Beauty", "Cars"),
    *("Music", "Movies", "Games", "Office", "Health", "Pets", "Travel", "Tools", "Jewelry", "Baby"),
)
_TAGS = ("sale", "new", "featured", "limited", "popular", "exclusive", "last", "first")
_TAX = 0.085
_SHIPPING = 599
_FREE_FROM = 10_000


def _cents(number: int) -> int:
    return 100 + number % 99_900


def product(number: int) -> dict[str, Any]:
    """The product with this number, from 1 on."""
    category = CATEGORIES[number % len(CATEGORIES)]
    return {
        "id": number,
        "sku": f"SKU-{number:06}",
        "name": f"{category} item {number}",
        "category": category,
        "brand": f"Brand {number % 50}",
        "price": _cents(number) / 100,
        "stock": number % 501,
        "rating": 1 + number % 40 / 10,
        "tags": [_TAGS[(number + each) % len(_TAGS)] for each in range(2 + number % 3)],
        "weight": (1 + number % 100) / 10,
        "description": f"A thing of the category {category}, number {number:06} of them all.",
    }


@lru_cache
def search(category: str, least: float, most: float, limit: int) -> dict[str, Any]:
    """The cheapest products of a category within these prices, and how many there are."""
    first = CATEGORIES.index(category)
    within = [
        number
        for number in range(first or len(CATEGORIES), PRODUCTS + 1, len(CATEGORIES))
        if least <= _cents(number) / 100 <= most
    ]
    cheapest = sorted(within, key=_cents)[:limit]
    return {"category": category, "total_found": len(within), "products": [product(number) for number in cheapest]}


def priced(user_id: str, items: list[dict[str, int]]) -> dict[str, Any]:
    """The bill for these items."""
    subtotal = sum(_cents(item["product_id"]) * item["quantity"] for item in items)
    tax = round(subtotal * _TAX)
    discount, shipping = (subtotal // 10, 0) if subtotal >= _FREE_FROM else (0, _SHIPPING)
    return {
        "order_id": f"ORD-{user_id}-{len(items)}",
        "user_id": user_id,
        "subtotal": subtotal / 100,
        "tax": tax / 100,
        "shipping": shipping / 100,
        "discount": discount / 100,
        "total": (subtotal + tax + shipping - discount) / 100,
        "items_count": len(items),
    }
