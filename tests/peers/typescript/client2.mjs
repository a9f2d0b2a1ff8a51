// How the client of 2.x is used where the two lines differ. It has no WebSocket any more.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const MODES = { legacy: 'legacy', modern: 'auto', pinned: { pin: '2026-07-28' } };

export const newClient = (info, era, options) =>
  new Client(info, { ...options, versionNegotiation: { mode: MODES[era] } });
export const overStdio = parameters => new StdioClientTransport(parameters);
export const overHttp = url => new StreamableHTTPClientTransport(new URL(url));
export const answer = (client, method, handler) => client.setRequestHandler(method, handler);
export const hear = (client, method, handler) => client.setNotificationHandler(method, handler);
export const callTool = (client, params, options) => client.callTool(params, options);
export const signalOf = context => context.mcpReq.signal;
export const revisionOf = client => client.getNegotiatedProtocolVersion();
