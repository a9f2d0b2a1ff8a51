// The client of 1.x of the TypeScript SDK and its tasks, driving a server, and telling what it saw.
//
// node tasks_client.mjs stdio COMMAND…
// node tasks_client.mjs http URL
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { setTimeout as sleep } from 'node:timers/promises';
import { step, tell, Wire } from './report.mjs';

const [over, ...target] = process.argv.slice(2);
const ids = {};
const asked = [];

const capabilities = {
  sampling: {},
  elicitation: { form: {} },
  tasks: { list: {}, cancel: {}, requests: { sampling: { createMessage: {} }, elicitation: { create: {} } } },
};
const client = new Client({ name: 'typescript', version: '1.x' }, { capabilities, taskStore: new InMemoryTaskStore() });
const { tasks } = client.experimental;

// Answer a question, or begin a task that will, when the server wants one.
function answerWith(schema, answer) {
  client.setRequestHandler(schema, async ({ params }, { taskStore }) => {
    asked.push(params);
    if (params.task === undefined) return sleep(300).then(() => answer); // so that who polls sees that it is waited for
    const task = await taskStore.createTask({ ttl: params.task.ttl, pollInterval: 50 });
    sleep(100).then(() => taskStore.storeTaskResult(task.taskId, 'completed', answer));
    return { task };
  });
}
answerWith(types.ElicitRequestSchema, { action: 'accept', content: { colour: 'green' } });
answerWith(types.CreateMessageRequestSchema, {
  role: 'assistant',
  content: { type: 'text', text: 'forty-two' },
  model: 'deep-thought',
});
client.setNotificationHandler(types.TaskStatusNotificationSchema, () => {});

const [command, ...args] = target;
const transport =
  over === 'http'
    ? new StreamableHTTPClientTransport(new URL(command))
    : new StdioClientTransport({ command, args, env: process.env });
const wire = new Wire(transport);
await client.connect(transport);
const heard = method => wire.got.filter(message => message.method === method);

const call = (name, parameters = {}, options = {}) =>
  client.request({ method: 'tools/call', params: { name, arguments: parameters } }, types.ResultSchema, options);
async function create(name, parameters = {}, ttl = 60_000) {
  const created = await call(name, parameters, { task: { ttl } });
  ids[name] = created.task.taskId;
  return created;
}
const get = name => tasks.getTask(ids[name]);
const result = name => tasks.getTaskResult(ids[name], types.ResultSchema);
const cancel = name => tasks.cancelTask(ids[name]);

// A task from its creation to its result, with its statuses and their messages, each once. The stream of the SDK ends
// without the result of a task that has failed.
async function whole(name, parameters = {}) {
  const created = await create(name, parameters);
  const seen = [];
  let waited;
  for (;;) {
    const { status, statusMessage = null, pollInterval } = await get(name);
    if (JSON.stringify(seen.at(-1)) !== JSON.stringify([status, statusMessage])) seen.push([status, statusMessage]);
    if (['completed', 'failed', 'cancelled'].includes(status)) break;
    if (status === 'input_required') waited ??= result(name); // which brings the question
    await sleep(pollInterval ?? 100);
  }
  return { created, seen, result: await (waited ?? result(name)) };
}

await step('tools', async () => {
  const { tools } = await client.listTools();
  return Object.fromEntries(tools.map(tool => [tool.name, tool.execution?.taskSupport ?? null]));
});
tell('opening', { saw: client.getServerCapabilities() });
await step('work', () => whole('work', { steps: 3 }));
await step('stream', async () => {
  const seen = [];
  const stream = tasks.callToolStream({ name: 'work', arguments: { steps: 1 } }, undefined, { task: { ttl: 60_000 } });
  for await (const { type, ...message } of stream) {
    if (seen.at(-1)?.[0] !== type) seen.push([type, message]);
  }
  return seen;
});
await step('progress', async () => {
  const seen = [];
  const created = await call('work', { steps: 3 }, { task: { ttl: 60_000 }, onprogress: ({ progress }) => seen.push(progress) });
  ids.work = created.task.taskId;
  await result('work');
  return { task: ids.work, seen, heard: heard('notifications/progress') };
});
await step('statuses', async () => {
  let told;
  for (let tries = 0; tries < 50 && told?.at(-1)?.status !== 'completed'; tries++) {
    if (tries > 0) await sleep(100); // what is told without being asked comes when it comes
    told = heard('notifications/tasks/status').map(({ params }) => params);
    told = told.filter(({ taskId }) => taskId === ids.work);
  }
  return told;
});
for (const name of ['ask_user', 'ask_model']) {
  await step(name, () => whole(name));
  tell(`${name} asked`, { saw: [asked.splice(0), ids[name]] });
}
await step('fail', () => whole('fail'));
await step('crash created', () => create('crash'));
await step('crash seen', async () => {
  for (;;) {
    const { status, statusMessage = null } = await get('crash');
    if (status !== 'working') return [[status, statusMessage]];
    await sleep(50);
  }
});
await step('crash', () => result('crash'));
await step('hang', () => create('hang'));
await step('hang working', () => get('hang'));
await step('hang cancelled', () => cancel('hang'));
await step('hang after', () => get('hang'));
await step('hang result', () => result('hang'));
await step('cancel again', () => cancel('hang'));
await step('cancel completed', () => cancel('work'));
await step('listed', async () => {
  const found = [];
  let cursor;
  do {
    const page = await tasks.listTasks(cursor);
    found.push(...page.tasks.map(task => task.taskId));
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return Object.keys(ids).filter(name => found.includes(ids[name]));
});
ids.unknown = 'no such task';
await step('get unknown', () => get('unknown'));
await step('result unknown', () => result('unknown'));
await step('cancel unknown', () => cancel('unknown'));
await step('work without a task', () => call('work', { steps: 1 }));
// The SDK's own server would wait for ever: its question comes with the result of a task, which nobody fetches here.
if (client.getServerVersion().name === 'ours') await step('ask_user without a task', () => call('ask_user'));
await step('hang without a task', () => call('hang'));
await step('plain as a task', () => create('plain'));
await step('expired', async () => {
  const { task } = await create('hang', {}, 300);
  if (task.ttl < 5000) await sleep(task.ttl + 200);
  return get('hang');
});
for (const name of ['elicit_as_task', 'sample_as_task']) {
  asked.length = 0;
  await step(name, () => call(name));
  tell(`${name} asked`, { saw: asked.splice(0) });
}
await step('still here', () => call('plain'));
await client.close();
process.exit(); // which the times to live of tasks would put off
