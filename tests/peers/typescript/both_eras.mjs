// How a server of 2.x is served in both eras: over stdio, or with the argument `http` over HTTP.
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, isLegacyRequest } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { isHttp, listen, sessions } from './http.mjs';

export function serveBothEras(build) {
  if (!isHttp) return serveStdio(build);
  const modern = createMcpHandler(build, { legacy: 'reject' });
  const handleLegacy = sessions(NodeStreamableHTTPServerTransport, build);
  const handleModern = toNodeHandler(modern);
  listen(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    const body = text ? JSON.parse(text) : undefined;
    const { method, headers } = request;
    const isLegacy = await isLegacyRequest(new Request('http://127.0.0.1/mcp', { method, headers }), body);
    return (isLegacy ? handleLegacy : handleModern)(request, response, body);
  });
  return modern;
}
