// A protected server of the TypeScript SDK, in both eras: node typescript_protected.mjs ISSUER. It says its port.
import { createServer } from 'node:http';
import { toNodeHandler } from '@modelcontextprotocol/node';
import {
  McpServer,
  OAuthError,
  OAuthErrorCode,
  createMcpHandler,
  getOAuthProtectedResourceMetadataUrl,
  oauthMetadataResponse,
  requireBearerAuth,
  requireScopes,
} from '@modelcontextprotocol/server';
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { z } from 'zod';
import { note } from './journal.mjs';

const issuer = process.argv[2];
const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
const oauthMetadata = await (await fetch(`${issuer}/.well-known/oauth-authorization-server`)).json();

const whoami = ({ http }) => {
  const { extra, scopes } = http.authInfo;
  const structuredContent = { subject: extra.subject, scopes: scopes.join(' ') };
  return { content: [{ type: 'text', text: JSON.stringify(structuredContent) }], structuredContent };
};

function build() {
  const server = new McpServer({ name: 'peer', version: '7.0' });
  const outputSchema = z.object({ subject: z.string(), scopes: z.string() });
  server.registerTool('whoami', { inputSchema: z.object({}), outputSchema }, (_, context) => whoami(context));
  const scopeChallenge = requireScopes('files:write');
  server.registerTool('write', { inputSchema: z.object({}), outputSchema, scopeChallenge }, (_, context) => whoami(context));
  return server;
}

const listener = createServer();
listener.listen(0, '127.0.0.1', () => {
  const { port } = listener.address();
  const url = new URL(`http://127.0.0.1:${port}/mcp`);
  const metadata = { oauthMetadata, resourceServerUrl: url, scopesSupported: ['files:read'] };
  const verifier = {
    async verifyAccessToken(token) {
      try {
        const { payload } = await jwtVerify(token, keys, { issuer, audience: url.href });
        const { client_id: clientId, exp: expiresAt, scope = '', sub } = payload;
        return { token, clientId, scopes: scope.split(' '), expiresAt, resource: url, extra: { subject: sub } };
      } catch (error) {
        throw new OAuthError(OAuthErrorCode.InvalidToken, error.message);
      }
    },
  };
  const gate = requireBearerAuth({
    verifier,
    requiredScopes: ['files:read'],
    resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(url),
    expectedResource: url,
  });
  const handler = createMcpHandler(build);
  listener.on('request', toNodeHandler({
    async fetch(request) {
      const document = oauthMetadataResponse(request, metadata);
      if (document) return document;
      const authInfo = await gate(request);
      return authInfo instanceof Response ? authInfo : handler.fetch(request, { authInfo });
    },
  }));
  console.log(port);
});
process.on('SIGTERM', () => {
  note('server ended');
  process.exit(0);
});
