// How a server is written with 2.x where the two lines differ.
import { McpServer, ResourceTemplate, completable } from '@modelcontextprotocol/server';

export { McpServer, ResourceTemplate, completable };
export { serveBothEras as serve } from './both_eras.mjs';

export const answer = (server, method, handler) => server.server.setRequestHandler(method, handler);
export const hear = (server, method, handler) => server.server.setNotificationHandler(method, handler);

// What a handler can do while it runs.
export const request = (_server, { mcpReq, http }) => ({
  signal: mcpReq.signal,
  token: mcpReq._meta?.progressToken,
  comeBack: () => http?.closeSSE?.(),
  hush: () => http?.closeStandaloneSSE?.(),
  notify: (method, params) => mcpReq.notify({ method, params }),
  log: (level, data, logger) => mcpReq.log(level, data, logger),
  sample: (params, limits) => mcpReq.requestSampling(params, limits),
  elicit: (params, limits) => mcpReq.elicitInput(params, limits),
  roots: limits => mcpReq.send({ method: 'roots/list' }, limits),
});
