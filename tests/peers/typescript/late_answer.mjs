// The client of 1.x cancels a call, and tells what its connection reports until the next answer.
//
// node late_answer.mjs TOOL COMMAND...
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';

const [tool, command, ...args] = process.argv.slice(2);
const client = new Client({ name: 'late', version: '1' });
const errors = [];
client.onerror = error => errors.push(error.message);
const transport = new StdioClientTransport({ command, args, stderr: 'pipe' });
const begun = new Promise(resolve => transport.stderr.on('data', text => `${text}`.includes('begun') && resolve()));
await client.connect(transport);
const user = new AbortController();
const call = client.callTool({ name: tool }, undefined, { signal: user.signal }).catch(error => error.message);
await begun;
user.abort('the user left');
await call;
await client.ping();
console.log(JSON.stringify(errors));
await client.close();
