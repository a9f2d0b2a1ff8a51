// How the client of 1.x is used where the two lines differ.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import * as types from '@modelcontextprotocol/sdk/types.js';

const SCHEMAS = {
  'sampling/createMessage': types.CreateMessageRequestSchema,
  'elicitation/create': types.ElicitRequestSchema,
  'roots/list': types.ListRootsRequestSchema,
  'notifications/message': types.LoggingMessageNotificationSchema,
  'notifications/resources/updated': types.ResourceUpdatedNotificationSchema,
  'notifications/tools/list_changed': types.ToolListChangedNotificationSchema,
};

export const newClient = (info, _era, options) => new Client(info, options);
export const overStdio = parameters => new StdioClientTransport(parameters);
export const overHttp = url => new StreamableHTTPClientTransport(new URL(url));
export const overWebSocket = url => new WebSocketClientTransport(new URL(url));
export const answer = (client, method, handler) => client.setRequestHandler(SCHEMAS[method], handler);
export const hear = (client, method, handler) => client.setNotificationHandler(SCHEMAS[method], handler);
export const callTool = (client, params, options) => client.callTool(params, undefined, options);
export const signalOf = extra => extra.signal;
export const revisionOf = (_client, wire) => wire.got[0].result.protocolVersion;
