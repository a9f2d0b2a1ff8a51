// The TypeScript SDK, 2.x, over Streamable HTTP: modern requests as `createMcpHandler` serves them, legacy requests with
// a server and a transport per session.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { McpServer, createMcpHandler } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { aborted, began, ended, listening, row, say } from './marking.mjs';

const NOTE = 'note://one';

function build() {
  const capabilities = { logging: {}, resources: { subscribe: true } };
  const server = new McpServer({ name: 'measured', version: '1' }, { capabilities });
  server.registerTool('echo', { inputSchema: z.object({ text: z.string() }) }, ({ text }) => say(text));
  server.registerTool('notify', { inputSchema: z.object({ count: z.number() }) }, async ({ count }, { mcpReq }) => {
    for (let number = 0; number < count; number++) await mcpReq.log('info', row(number));
    return say(`${count} rows`);
  });
  server.registerTool('hang', { inputSchema: z.object({ number: z.number() }) }, async ({ number }, { mcpReq }) => {
    const end = aborted(mcpReq.signal);
    began(number);
    await end;
    ended(number);
    return say('ended');
  });
  server.registerTool('change', { inputSchema: z.object({}) }, () => {
    handler.notify.resourceUpdated(NOTE);
    return say('changed');
  });
  server.registerResource('one', NOTE, {}, () => ({ contents: [{ uri: NOTE, text: 'one' }] }));
  return server;
}

const handler = createMcpHandler(build, { legacy: 'reject' });
const modern = toNodeHandler(handler);
const sessions = new Map();

async function open() {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: id => sessions.set(id, transport),
    onsessionclosed: id => sessions.delete(id),
  });
  await build().connect(transport);
  return transport;
}

const http = createServer(async (request, response) => {
  if (request.headers['mcp-method'] !== undefined) return modern(request, response);
  const transport = sessions.get(request.headers['mcp-session-id']) ?? (await open());
  return transport.handleRequest(request, response);
});
http.listen(0, '127.0.0.1', () => listening(http.address().port));
