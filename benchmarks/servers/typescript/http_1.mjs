// The TypeScript SDK, 1.x, over Streamable HTTP: a server and a transport per session.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';
import { aborted, began, ended, listening, row, say } from './marking.mjs';

function build() {
  const server = new McpServer({ name: 'measured', version: '1' }, { capabilities: { logging: {} } });
  server.registerTool('echo', { inputSchema: { text: z.string() } }, ({ text }) => say(text));
  server.registerTool('notify', { inputSchema: { count: z.number() } }, async ({ count }, { sendNotification }) => {
    for (let number = 0; number < count; number++) {
      const params = { level: 'info', data: row(number) };
      await sendNotification({ method: 'notifications/message', params });
    }
    return say(`${count} rows`);
  });
  server.registerTool('hang', { inputSchema: { number: z.number() } }, async ({ number }, { signal }) => {
    const end = aborted(signal);
    began(number);
    await end;
    ended(number);
    return say('ended');
  });
  return server;
}

const sessions = new Map();

async function open() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: id => sessions.set(id, transport),
    onsessionclosed: id => sessions.delete(id),
  });
  await build().connect(transport);
  return transport;
}

const http = createServer(async (request, response) => {
  const transport = sessions.get(request.headers['mcp-session-id']) ?? (await open());
  return transport.handleRequest(request, response);
});
http.listen(0, '127.0.0.1', () => listening(http.address().port));
