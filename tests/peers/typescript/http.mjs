// How a server of the TypeScript SDK is served over HTTP on Node: it says its port on standard output.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

export const isHttp = process.argv.at(-1) === 'http';

// Serve until SIGTERM, at which the process ends in good order.
export function listen(handle) {
  const server = createServer(handle);
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.on('SIGTERM', () => process.exit(0));
}

// All that was ever sent in a session; the id of an event is its place there.
class Events {
  events = [];

  async storeEvent(streamId, message) {
    return `${this.events.push({ streamId, message }) - 1}`;
  }

  async getStreamIdForEventId(eventId) {
    return this.events[eventId]?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const { streamId } = this.events[lastEventId];
    for (let place = Number(lastEventId) + 1; place < this.events.length; place++) {
      const event = this.events[place];
      if (event.streamId === streamId && 'jsonrpc' in event.message) await send(`${place}`, event.message);
    }
    return streamId;
  }
}

// Handle requests of legacy clients, each of which has a server of its own, made by `build`.
export function sessions(Transport, build) {
  const open = new Map();
  return async (request, response, body) => {
    const id = request.headers['mcp-session-id'];
    if (id !== undefined && !open.has(id)) return response.writeHead(404).end();
    if (id !== undefined) return open.get(id).handleRequest(request, response, body);
    const transport = new Transport({
      sessionIdGenerator: randomUUID,
      eventStore: new Events(),
      retryInterval: 20, // milliseconds after which a client may come back for the rest of an answer
      onsessioninitialized: made => open.set(made, transport),
      onsessionclosed: made => open.delete(made),
    });
    await build({ era: 'legacy' }).connect(transport);
    return transport.handleRequest(request, response, body);
  };
}
