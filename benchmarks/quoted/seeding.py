"""What Redis holds before each measure: the carts, the histories, the ranking and the counters of the shop."""

from __future__ import annotations

from ..replicas.redis import RedisProcess
from .catalog import PRODUCTS

__all__ = ["seed"]

_CARTS = 10_000
_HISTORIES = 1_000
_ORDERS = 20
_COUNTERS = 100

_SCRIPT = """
redis.call('FLUSHALL')
local products, carts, histories, orders, counters = unpack(ARGV)
local function user(number) return string.format('user-%05d', number) end
for number = 1, carts do
  local items = {{product_id = number * 7 % products + 1, quantity = 1 + number % 3},
                 {product_id = number * 13 % products + 1, quantity = 1 + number % 2}}
  redis.call('HSET', 'shop:cart:' .. user(number), 'user_id', user(number), 'items', cjson.encode(items),
             'created', 1740000000, 'expires', 1740086400, 'total', number % 9999 / 100)
end
for number = 1, histories do
  for order = 1, orders do
    local entry = {order_id = string.format('ORD-%05d-%02d', number, order), quantity = 1 + order % 3,
                   product_id = number * order * 7 % products + 1, price = number * order * 13 % 9999 / 100,
                   ts = 1740000000 + number * 86400 + order * 3600}
    redis.call('RPUSH', 'shop:history:' .. user(number), cjson.encode(entry))
  end
end
for number = 1, products do
  redis.call('ZADD', 'shop:popular', number * 7 % 10000, 'product:' .. number)
end
for number = 0, counters - 1 do
  redis.call('SET', 'shop:limit:' .. user(number), 0)
end
return 0
"""


def seed(store: RedisProcess) -> None:
    """Replace all that ``store`` holds."""
    store.ask("EVAL", _SCRIPT, "0", *map(str, (PRODUCTS, _CARTS, _HISTORIES, _ORDERS, _COUNTERS)))
