// The server that `trio-mcp torture` tests, made with the TypeScript SDK, over stdio or HTTP.
//
// node torture_server.mjs 1|2 [http]
import { spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';

const sdk = await import(`./server${process.argv[2]}.mjs`);
const asks = process.argv[2] === '2' ? await import('@modelcontextprotocol/server') : null;

const say = text => ({ content: [{ type: 'text', text: String(text) }] });
const FORM = { type: 'object', properties: { value: { type: 'string' } }, required: ['value'] };
const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency'];
let running = 0;

async function counted(work) {
  running += 1;
  try {
    return await work();
  } finally {
    running -= 1;
  }
}

function build() {
  const server = new sdk.McpServer({ name: 'torture', version: '1' }, { capabilities: { logging: {} } });
  const tool = (name, run) =>
    server.registerTool(name, { inputSchema: z.object({}) }, (_, context) =>
      run(sdk.request(server, context), context),
    );
  const report = ({ notify, token }, progress, total) =>
    token === undefined ? undefined : notify('notifications/progress', { progressToken: token, progress, total });

  tool('fast', () => say('fine'));
  tool('running', () => say(running));
  tool('slow', request =>
    counted(async () => {
      for (let step = 1; step <= 600; step++) {
        await report(request, step, 600);
        await sleep(50, undefined, { signal: request.signal });
      }
      return say('done');
    }),
  );
  tool('ask', async (request, { mcpReq, requestId }) => {
    if (mcpReq?.inputResponses) return say(mcpReq.inputResponses.which.content.value);
    if (mcpReq?.envelope) {
      const which = asks.inputRequired.elicit({ message: 'Which value?', requestedSchema: FORM });
      return asks.inputRequired({ inputRequests: { which } });
    }
    const form = { message: 'Which value?', requestedSchema: FORM };
    const { signal } = request;
    const answer = await counted(() =>
      asks === null
        ? server.server.elicitInput(form, { signal, relatedRequestId: requestId })
        : request.elicit(form, { signal }),
    );
    return say(answer.content?.value ?? answer.action);
  });
  tool('flood', async request => {
    for (let step = 1; step <= 10_000; step++) await report(request, step, 10_000);
    return say('done');
  });
  tool('logs', async request => {
    for (const level of LEVELS) await request.log(level, `a message at ${level}`);
    return say('done');
  });
  tool('spawn', async ({ signal }) => {
    const child = spawn('sleep', ['60'], { signal });
    await new Promise(resolve => child.on('exit', resolve).on('error', resolve));
    return say('done');
  });
  return server;
}

await sdk.serve(build);
