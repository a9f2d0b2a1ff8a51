// The client of 2.x on a connection of one request.
//
// node short_client.mjs hanging|listening|REVISION JOURNAL COMMAND...
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const [how, journal, command, ...args] = process.argv.slice(2);
const isModern = ['hanging', 'listening', '2026-07-28'].includes(how);
const options = isModern
  ? { versionNegotiation: { mode: { pin: '2026-07-28' } } }
  : { supportedProtocolVersions: [how] };
const client = new Client({ name: 'short', version: '2' }, options);
await client.connect(new StdioClientTransport({ command, args, env: { JOURNAL: journal } }));

const tell = (...words) => console.log(JSON.stringify(words));
if (how === 'hanging') {
  await new Promise(begun => {
    const ended = client.callTool({ name: 'hang' }, { onprogress: begun });
    ended.catch(error => tell(error.code, error.message));
  });
} else if (how === 'listening') {
  const subscription = await client.listen({ toolsListChanged: true });
  subscription.closed.then(tell);
} else {
  const { content } = await client.callTool({ name: 'echo', arguments: { text: 'hi' } });
  tell(client.getNegotiatedProtocolVersion(), content[0].text);
}

// The second wait, after the signal, is as long as the first: 2 s. Then it kills, which may be too soon on a machine that
// does much else.
const { setTimeout } = globalThis;
let waits = 0;
globalThis.setTimeout = (then, ms, ...rest) => setTimeout(then, waits++ ? 60_000 : ms, ...rest);
await client.close();
