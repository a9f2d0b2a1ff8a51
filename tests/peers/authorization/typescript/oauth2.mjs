// How the client of 2.x is used where the two lines differ.
import { Client, DpopSession, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const MODES = { legacy: 'legacy', modern: 'auto' };

export const newClient = (info, era) => new Client(info, { versionNegotiation: { mode: MODES[era] } });
export const newDpop = () => DpopSession.create();
export const overHttp = {
  takesParameters: true,
  make: (url, authProvider) => new StreamableHTTPClientTransport(url, { authProvider }),
};
