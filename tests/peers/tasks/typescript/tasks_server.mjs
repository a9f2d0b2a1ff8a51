// A server with tasks, written with 1.x of the TypeScript SDK, over stdio or, with the argument http, over HTTP.
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { CreateMessageResultSchema, ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { isHttp, listen, sessions } from './http.mjs';
import { note } from './journal.mjs';

const FORM = { type: 'object', properties: { colour: { type: 'string' } }, required: ['colour'] };
const COLOUR = { mode: 'form', message: 'Which colour?', requestedSchema: FORM };
const MODEL = { messages: [{ role: 'user', content: { type: 'text', text: 'What is it?' } }], maxTokens: 10 };

const say = (text, more = {}) => ({ content: [{ type: 'text', text }], ...more });
const coloured = answer => say(`${answer.action} ${answer.content.colour}`);
const sampled = answer => say(`${answer.model}: ${answer.content.text}`);

// What comes of a request that its receiver runs as a task.
async function outcome(stream) {
  for await (const message of stream) {
    if (message.type === 'error') throw message.error;
    if (message.type === 'result') return message.result;
  }
}

function build() {
  const capabilities = { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } };
  const options = { capabilities, taskStore: new InMemoryTaskStore(), taskMessageQueue: new InMemoryTaskMessageQueue() };
  const server = new McpServer({ name: 'peer', version: '1.x' }, options);

  // `work` is given the arguments, what the request brought, and the id of its task.
  function offer(name, taskSupport, inputSchema, work) {
    async function createTask(args, extra) {
      const { taskStore } = extra;
      const task = await taskStore.createTask({ ttl: extra.taskRequestedTtl, pollInterval: 50 });
      const end = result => taskStore.storeTaskResult(task.taskId, result.isError ? 'failed' : 'completed', result);
      work(args, extra, task.taskId).catch(error => say(error.message, { isError: true })).then(end).catch(() => {});
      return { task };
    }
    const handler = {
      createTask,
      getTask: (_args, { taskStore, taskId }) => taskStore.getTask(taskId),
      getTaskResult: (_args, { taskStore, taskId }) => taskStore.getTaskResult(taskId),
    };
    server.experimental.tasks.registerToolTask(name, { inputSchema, execution: { taskSupport } }, handler);
  }

  // Ask in the name of a task: the question waits until somebody fetches the result.
  async function ask({ sendRequest, taskStore }, taskId, method, params, schema) {
    const answer = await sendRequest({ method, params }, schema, { relatedTask: { taskId } });
    await taskStore.updateTaskStatus(taskId, 'working');
    return answer;
  }

  offer('work', 'optional', { steps: z.number() }, async ({ steps }, extra, taskId) => {
    const { progressToken } = extra._meta ?? {};
    for (let step = 1; step <= steps; step++) {
      await extra.taskStore.updateTaskStatus(taskId, 'working', `step ${step}`);
      const progress = { method: 'notifications/progress', params: { progressToken, progress: step, total: steps } };
      if (progressToken !== undefined) await server.server.notification(progress, { relatedTask: { taskId } });
      await sleep(100);
    }
    return say(`${steps} steps`);
  });
  offer('ask_user', 'optional', {}, async (_args, extra, taskId) =>
    coloured(await ask(extra, taskId, 'elicitation/create', COLOUR, ElicitResultSchema)));
  offer('ask_model', 'optional', {}, async (_args, extra, taskId) =>
    sampled(await ask(extra, taskId, 'sampling/createMessage', MODEL, CreateMessageResultSchema)));
  offer('fail', 'optional', {}, async () => say('no luck today', { isError: true }));
  offer('crash', 'optional', {}, async () => {
    throw new Error('broken');
  });
  offer('hang', 'required', {}, async () => {
    note('hang began');
    await new Promise(() => {});
  });
  server.registerTool('plain', { inputSchema: {} }, async () => say('plain'));
  server.registerTool('elicit_as_task', { inputSchema: {} }, async (_args, { requestId }) => {
    const { tasks } = server.server.experimental;
    const options = { task: { ttl: 60_000 }, relatedRequestId: requestId };
    return coloured(await outcome(tasks.elicitInputStream(COLOUR, options)));
  });
  server.registerTool('sample_as_task', { inputSchema: {} }, async (_args, { requestId }) => {
    const { tasks } = server.server.experimental;
    const options = { task: { ttl: 60_000 }, relatedRequestId: requestId };
    return sampled(await outcome(tasks.createMessageStream(MODEL, options)));
  });
  return server;
}

if (isHttp) {
  listen(sessions(StreamableHTTPServerTransport, build));
} else {
  process.stdin.once('close', () => process.exit()); // which the times to live of tasks would put off
  await build().connect(new StdioServerTransport());
}
