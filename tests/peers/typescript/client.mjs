// A client of the TypeScript SDK, driving a server, and telling what it saw.
//
// node client.mjs 1|2 legacy|modern|pinned JOURNAL COMMAND...
// node --experimental-websocket client.mjs 1 legacy JOURNAL ws://...
// node client.mjs 1|2 legacy|modern JOURNAL http://...
import { Wire, step, tell } from './report.mjs';

const [release, era, journal, command, ...args] = process.argv.slice(2);
const sdk = await import(`./client${release}.mjs`);
const isLegacy = era === 'legacy';
const META = isLegacy ? {} : { _meta: { 'io.modelcontextprotocol/logLevel': 'info' } };

const logs = [];
const changes = [];
const errors = [];
const asked = {};
const neverAsked = deferred();
const neverCancelled = deferred();

function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

const listedAnew = deferred();
const options = {
  capabilities: { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } },
  listChanged: {
    tools: {
      debounceMs: 0,
      onChanged: (error, tools) => (error ? listedAnew.reject(error) : listedAnew.resolve(tools.map(tool => tool.name))),
    },
  },
};
const client = sdk.newClient({ name: 'typescript', version: release }, era, options);
client.onerror = error => errors.push(String(error));

sdk.answer(client, 'sampling/createMessage', async ({ params }, context) => {
  const [message] = params.messages;
  asked.sampling = [message.role, message.content.text, params.maxTokens, params.systemPrompt];
  if (message.content.text === 'never') {
    neverAsked.resolve();
    await new Promise(resolve => sdk.signalOf(context).addEventListener('abort', resolve));
    neverCancelled.resolve(String(sdk.signalOf(context).reason));
  }
  return { role: 'assistant', content: { type: 'text', text: 'forty-two' }, model: 'deep-thought' };
});
sdk.answer(client, 'elicitation/create', async ({ params }) => {
  asked[params.mode === 'url' ? 'url' : 'form'] = params;
  return { action: 'accept', ...(params.mode === 'url' ? {} : { content: { colour: 'green' } }) };
});
sdk.answer(client, 'roots/list', async () => ({ roots: [{ uri: 'file:///home/pilot', name: 'home' }] }));
sdk.hear(client, 'notifications/message', ({ params }) => logs.push([params.level, params.data, params.logger ?? null]));
const updated = deferred();
sdk.hear(client, 'notifications/resources/updated', ({ params }) => updated.resolve(params.uri));

function reach() {
  if (command.startsWith('ws:')) return sdk.overWebSocket(command);
  if (command.startsWith('http:')) return sdk.overHttp(command);
  return sdk.overStdio({ command, args, env: { JOURNAL: journal } });
}
const transport = reach();
const wire = new Wire(transport);
await client.connect(transport);

const call = (name, parameters = {}, limits = {}) =>
  sdk.callTool(client, { name, arguments: parameters, ...META }, limits);
const text = async (name, parameters) => (await call(name, parameters)).content[0].text;

// Leave a call at its first sign of life, then ask how it ended over there.
async function leave(tool) {
  const controller = new AbortController();
  const limits = { signal: controller.signal, onprogress: () => controller.abort('enough') };
  const left = await call(tool, {}, limits).catch(error => [error.code, error.message]);
  return [left, await text('ending_of', { tool })];
}

await step('opening', () => ({
  revision: sdk.revisionOf(client, wire),
  server: client.getServerVersion(),
  instructions: client.getInstructions(),
  capabilities: Object.keys(client.getServerCapabilities()).sort(),
}));
await step('tools', async () => {
  const tools = {};
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    for (const tool of page.tools) tools[tool.name] = tool;
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return tools;
});
await step('lists', async () => ({
  resources: (await client.listResources()).resources,
  templates: (await client.listResourceTemplates()).resourceTemplates,
  prompts: (await client.listPrompts()).prompts,
}));
for (const said of ['', 'naïve ☕ 𝄞', 'line\nbreak\u2028and\x00more', 'x'.repeat(300_000)]) {
  await step(`echo ${[...said].length}`, () => call('echo', { text: said }));
}
await step('weather', () => call('weather', { city: 'Oslo' }));
await step('add', () => call('add', { a: 2, b: 3 }));
await step('exhibits', () => call('exhibits'));
await step('fail', () => call('fail'));
await step('crash', () => call('crash'));
await step('unknown tool', () => call('nowhere'));
await step('bad arguments', () => call('add', { a: 'two' }));
await step('many', () => Promise.all(Array.from({ length: 50 }, (_, number) => text('echo', { text: `${number}` }))));
await step('text resource', async () => (await client.readResource({ uri: 'note://motto' })).contents);
await step('bytes resource', async () => (await client.readResource({ uri: 'note://dot' })).contents);
await step('template resource', async () => (await client.readResource({ uri: 'note://by/Ada/Engines' })).contents);
await step('unknown resource', () => client.readResource({ uri: 'note://nowhere' }));
await step('prompt', async () => {
  const { messages } = await client.getPrompt({ name: 'greet', arguments: { name: 'Bo', tone: 'dry' } });
  return messages.map(message => [message.role, message.content.text]);
});
await step('unknown prompt', () => client.getPrompt({ name: 'nowhere' }));
await step('prompt completion', async () => {
  const ref = { type: 'ref/prompt', name: 'greet' };
  return (await client.complete({ ref, argument: { name: 'name', value: 'Ad' } })).completion.values;
});
await step('template completion', async () => {
  const ref = { type: 'ref/resource', uri: 'note://by/{author}/{title}' };
  const context = { arguments: { author: 'Ada' } };
  return (await client.complete({ ref, argument: { name: 'title', value: 'Eng' }, context })).completion.values;
});
await step('progress', async () => {
  const seen = [];
  await call('count', { to: 6 }, { onprogress: ({ progress }) => seen.push(progress) });
  const came = wire.got.filter(message => message.method === 'notifications/progress').map(message => message.params);
  return { seen, came };
});
await step('logs', async () => {
  await call('chatter');
  return logs.splice(0);
});

for (const tool of ['hang', 'family', 'in_thread', 'stubborn']) await step(tool, () => leave(tool));
await step('after stubborn', async () => {
  const { id } = wire.sent.findLast(message => message.params?.name === 'stubborn');
  await text('echo', { text: 'messages keep their order' });
  return [wire.about(id).map(message => message.method ?? 'an answer'), logs.splice(0)];
});
await step('timeout', () => call('hang', {}, { timeout: 300 }));
await step('timeout ending', () => text('ending_of', { tool: 'hang' }));
await step('never sent', () => call('echo', { text: '' }, { signal: AbortSignal.abort('too late') }));

await step('sampling', () => text('ask_model', { question: 'What is it?' }));
await step('sampling ending', () => text('ending_of', { tool: 'ask_model' }));
await step('elicitation', () => text('ask_user', { message: 'Which colour?' }));
await step('url elicitation', () => text('send_user', { url: 'https://example.com/sign-in' }));
await step('roots', () => call('show_roots'));
tell('asked', { saw: asked });

if (isLegacy) {
  await step('leave asking', async () => {
    const controller = new AbortController();
    const asking = call('ask_model', { question: 'never' }, { signal: controller.signal }).catch(() => {});
    await neverAsked.promise;
    controller.abort('enough');
    await asking;
    return [await neverCancelled.promise, await text('ending_of', { tool: 'ask_model' })];
  });
  await step('ping', () => client.ping());
  await step('set level', () => client.setLoggingLevel('emergency'));
  await step('logs above level', async () => {
    await call('chatter');
    return logs.splice(0);
  });
  await step('change', async () => {
    await client.subscribeResource({ uri: 'note://motto' });
    await call('touch');
    await call('grow');
    return [await updated.promise, await listedAnew.promise];
  });
  await step('unsubscribed', async () => {
    await client.unsubscribeResource({ uri: 'note://motto' });
    const before = wire.got.length;
    await call('touch');
    return wire.got.slice(before).map(message => message.method ?? 'an answer');
  });
} else {
  await step('listen', async () => {
    const filter = { toolsListChanged: true, resourceSubscriptions: ['note://motto', 'note://nowhere'] };
    const subscription = await client.listen(filter);
    await call('touch');
    await call('grow');
    const came = [await updated.promise, await listedAnew.promise];
    await subscription.close();
    const before = wire.got.length;
    await call('touch');
    const stream = wire.cancels.at(-1).requestId;
    const after = wire.got.slice(before).filter(message => message.method || message.id === stream);
    return { honoured: subscription.honoredFilter, came, ended: await subscription.closed, after };
  });
}
await step('still here', () => call('echo', { text: 'still here' }));
tell('late', { saw: wire.late });
tell('errors', { saw: errors });
await client.close();
tell('closed', { saw: true });
