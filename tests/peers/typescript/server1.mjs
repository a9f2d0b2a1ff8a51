// How a server is written with 1.x where the two lines differ.
import { completable } from '@modelcontextprotocol/sdk/server/completable.js';
import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { isHttp, listen, sessions } from './http.mjs';

export { McpServer, ResourceTemplate, completable };

export function serve(build) {
  if (isHttp) return listen(sessions(StreamableHTTPServerTransport, build));
  return build().connect(new StdioServerTransport());
}

const SCHEMAS = {
  'resources/subscribe': types.SubscribeRequestSchema,
  'resources/unsubscribe': types.UnsubscribeRequestSchema,
  'notifications/roots/list_changed': types.RootsListChangedNotificationSchema,
};
export const answer = (server, method, handler) => server.server.setRequestHandler(SCHEMAS[method], handler);
export const hear = (server, method, handler) => server.server.setNotificationHandler(SCHEMAS[method], handler);

// What a handler can do while it runs.
export const request = (server, extra) => ({
  signal: extra.signal,
  token: extra._meta?.progressToken,
  comeBack: () => extra.closeSSEStream?.(),
  hush: () => extra.closeStandaloneSSEStream?.(),
  notify: (method, params) => extra.sendNotification({ method, params }),
  log: (level, data, logger) => server.sendLoggingMessage({ level, data, logger }, extra.sessionId),
  sample: (params, limits) =>
    extra.sendRequest({ method: 'sampling/createMessage', params }, types.CreateMessageResultSchema, limits),
  elicit: (params, limits) =>
    extra.sendRequest({ method: 'elicitation/create', params }, types.ElicitResultSchema, limits),
  roots: limits => extra.sendRequest({ method: 'roots/list' }, types.ListRootsResultSchema, limits),
});
