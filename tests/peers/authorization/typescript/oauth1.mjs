// How the client of 1.x is used where the two lines differ.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

export const newClient = info => new Client(info);
export const overHttp = {
  takesParameters: false,
  make: (url, authProvider) => new StreamableHTTPClientTransport(url, { authProvider }),
};
