// The shop, written with the TypeScript SDK, 2.x, and ioredis; the same program on Node and on Bun.
import { writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { McpServer, createMcpHandler } from '@modelcontextprotocol/server';
import Redis from 'ioredis';
import { z } from 'zod';

const POPULAR = 'shop:popular';
const api = process.env.API_URL;
const store = new Redis(process.env.REDIS_URL);

const say = value => ({ content: [{ type: 'text', text: JSON.stringify(value) }] });
const ask = (path, options) => fetch(api + path, options).then(response => response.json());
const item = z.object({ product_id: z.number().int(), quantity: z.number().int() });

const search = z.object({
  category: z.string().default('Electronics'),
  min_price: z.number().default(50),
  max_price: z.number().default(500),
  limit: z.number().int().default(10),
});

async function searchProducts({ category, min_price, max_price, limit }) {
  const asked = new URLSearchParams({ category, min_price, max_price, limit });
  const [answer, popular] = await Promise.all([ask(`/products/search?${asked}`), store.zrevrange(POPULAR, 0, 9)]);
  const ids = popular.map(member => Number(member.split(':')[1]));
  const ranks = new Map(ids.map((id, index) => [id, index + 1]));
  const products = answer.products.map(({ id, sku, name, price, rating }) => {
    return { id, sku, name, price, rating, popularity_rank: ranks.get(id) ?? 0 };
  });
  return say({ category, total_found: answer.total_found, products, top10_popular_ids: ids });
}

async function getUserCart({ user_id }) {
  const kept = await store.hgetall(`shop:cart:${user_id}`);
  const items = JSON.parse(kept.items);
  const [, history] = await Promise.all([
    ask(`/products/${items[0].product_id}`),
    store.lrange(`shop:history:${user_id}`, 0, 4),
  ]);
  const cart = { items, item_count: items.length, estimated_total: Number(kept.total) };
  return say({ user_id, cart, recent_history: history.map(entry => JSON.parse(entry)) });
}

async function checkout({ user_id, items }) {
  const now = Math.floor(Date.now() / 1000);
  const limit = String(Number(user_id.split('-')[1]) % 100).padStart(5, '0');
  const order = JSON.stringify({ order_id: `ORD-${user_id}-${now}`, items, ts: now });
  const [bill, [[, count]]] = await Promise.all([
    ask('/cart/calculate', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ user_id, items }),
    }),
    store
      .pipeline()
      .incr(`shop:limit:user-${limit}`)
      .rpush(`shop:history:${user_id}`, order)
      .zincrby(POPULAR, 1, `product:${items[0].product_id}`)
      .exec(),
  ]);
  const { order_id, total } = bill;
  return say({ order_id, user_id, total, items_count: items.length, rate_limit_count: count, status: 'confirmed' });
}

function build() {
  const server = new McpServer({ name: 'shop', version: '1' });
  const described = (description, inputSchema) => ({ description, inputSchema });
  const user = z.object({ user_id: z.string().default('user-00042') });
  const buying = z.object({ user_id: z.string(), items: z.array(item) });
  server.registerTool('search_products', described('Search for products.', search), searchProducts);
  server.registerTool('get_user_cart', described('Return the cart of a user.', user), getUserCart);
  server.registerTool('checkout', described('Buy these items.', buying), checkout);
  return server;
}

const http = createServer(toNodeHandler(createMcpHandler(build)));
http.listen(0, '127.0.0.1', () => writeSync(Number(process.env.BENCHMARK_MARKS), `p${http.address().port}\n`));
