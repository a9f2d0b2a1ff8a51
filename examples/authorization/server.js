// An authorization server for `python -m examples.authorization` and for the tests: oidc-provider, with everything in memory.
//
// The first line of standard input is the configuration, as JSON; at the end of standard input the server ends.
// The first line of standard output is the issuer. What the server does follows, as JSON, a line each, without secrets.

import { generateKeyPairSync, randomBytes, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';

// Standard output is for the lines above.
console.info = console.error;
const { default: Provider, errors } = await import('oidc-provider');

const DEFAULTS = {
  port: 0,
  scopes: [], // what a client may ask for, at any resource
  opaque: false, // access tokens that mean nothing to others, in place of signed ones (RFC 9068)
  lifetime: 3600, // of access tokens, in seconds
  dpop_nonces: false, // whether each proof needs a nonce (RFC 9449 section 8)
  clients: [], // known in advance, each with its metadata (RFC 7591 section 2)
  documents: {}, // client metadata documents by URL, in place of the web
  user: 'alice', // who signs in
};

function tell(event) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

function signingKey() {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return { ...privateKey.export({ format: 'jwk' }), alg: 'ES256', use: 'sig', kid: randomUUID() };
}

function makeProvider(issuer, settings) {
  const provider = new Provider(issuer, {
    jwks: { keys: [signingKey()] },
    cookies: { keys: [randomBytes(32).toString('base64url')] },
    clients: settings.clients,
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    // Clients name the scopes of their first request when they register; they may ask for others later.
    extraClientMetadata: { properties: ['scope'], validator: (ctx, key, value, metadata) => delete metadata.scope },
    responseTypes: ['code'],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
    expiresWithSession: async () => false,
    findAccount: async (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
    interactions: { url: async (ctx, interaction) => `/sign-in/${interaction.uid}` },
    fetch: async (url) =>
      url in settings.documents ? Response.json(settings.documents[url]) : new Response(null, { status: 404 }),
    ttl: { AccessToken: settings.lifetime, ClientCredentials: settings.lifetime },
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: true },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      clientCredentials: { enabled: true },
      introspection: { enabled: true, allowedPolicy: async (ctx, client) => client.clientAuthMethod !== 'none' },
      revocation: { enabled: true, allowedPolicy: async (ctx, client, token) => client.clientId === token.clientId },
      dPoP: {
        enabled: true,
        nonceSecret: settings.dpop_nonces ? randomBytes(32) : undefined,
        requireNonce: () => settings.dpop_nonces,
      },
      resourceIndicators: {
        enabled: true,
        defaultResource: async (ctx, client, oneOf) => oneOf,
        useGrantedResource: async () => true,
        getResourceServerInfo: async (ctx, resource) => {
          if (!['127.0.0.1', 'localhost'].includes(new URL(resource).hostname)) throw new errors.InvalidTarget();
          const jwt = { sign: { alg: 'ES256' } };
          const accessTokenFormat = settings.opaque ? 'opaque' : 'jwt';
          return { scope: settings.scopes.join(' '), audience: resource, accessTokenFormat, jwt };
        },
      },
    },
  });
  provider.on('registration_create.success', () => tell({ done: 'registration' }));
  provider.on('authorization.success', () => tell({ done: 'authorization' }));
  provider.on('grant.success', (ctx) => tell({ done: ctx.oidc.params.grant_type }));
  provider.on('grant.revoked', () => tell({ done: 'revocation' }));
  for (const endpoint of ['authorization', 'grant', 'registration_create', 'introspection', 'revocation']) {
    provider.on(`${endpoint}.error`, (ctx, error) => tell({ refused: endpoint, error: error.message }));
  }
  provider.on('server_error', (ctx, error) => console.error(error.stack));
  return provider;
}

const escaped = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

function page(client, user, params) {
  const scopes = (params.scope ?? '').split(' ').filter(Boolean);
  return `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Sign in</title></head>
<body>
<h1>Sign in</h1>
<p>You are <b>${escaped(user)}</b>. <b>${escaped(client.clientName ?? client.clientId)}</b> asks for
access to <b>${escaped(params.resource ?? 'nothing in particular')}</b>.</p>
<ul>${scopes.map((scope) => `<li>${escaped(scope)}</li>`).join('')}</ul>
<form method="post">
<button id="allow" name="answer" value="allow" autofocus>Allow</button>
<button id="deny" name="answer" value="deny">Deny</button>
</form>
</body>
</html>
`;
}

async function formOf(request) {
  let body = '';
  for await (const data of request) {
    body += data;
    if (body.length > 10_000) throw new Error('the form is too large');
  }
  return new URLSearchParams(body);
}

// What the user allows is all that was asked for.
async function grantOf(provider, details, user) {
  const { params, grantId } = details;
  const grant =
    (grantId && (await provider.Grant.find(grantId))) ||
    new provider.Grant({ accountId: user, clientId: params.client_id });
  if (params.scope) grant.addOIDCScope(params.scope);
  for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, params.scope ?? '');
  return grant.save();
}

async function signIn(provider, user, request, response) {
  const details = await provider.interactionDetails(request, response);
  if (request.method !== 'POST') {
    const client = await provider.Client.find(details.params.client_id);
    response.setHeader('Content-Type', 'text/html; charset=utf-8');
    response.setHeader('Content-Security-Policy', "default-src 'none'; frame-ancestors 'none'");
    response.end(page(client, user, details.params));
    return;
  }
  const result =
    (await formOf(request)).get('answer') === 'allow'
      ? { login: { accountId: user }, consent: { grantId: await grantOf(provider, details, user) } }
      : { error: 'access_denied', error_description: 'the user said no' };
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
}

function start(settings) {
  const server = createServer();
  server.listen(settings.port, '127.0.0.1', () => {
    const issuer = `http://127.0.0.1:${server.address().port}`;
    const provider = makeProvider(issuer, settings);
    const answer = provider.callback();
    server.on('request', (request, response) => {
      if (!request.url.startsWith('/sign-in/')) {
        answer(request, response);
        return;
      }
      signIn(provider, settings.user, request, response).catch((error) => {
        response.statusCode = error.statusCode ?? 500;
        response.end(`${error.message}\n`);
      });
    });
    process.stdout.write(`${issuer}\n`);
  });
}

const input = createInterface({ input: process.stdin });
input.once('line', (line) => start({ ...DEFAULTS, ...JSON.parse(line) }));
input.once('close', () => process.exit(0));
