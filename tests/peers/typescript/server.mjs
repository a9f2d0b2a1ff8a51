// A server written with the TypeScript SDK, over stdio or HTTP.
//
// node server.mjs 1|2 [http]
import { z } from 'zod';
import { note } from './journal.mjs';

const sdk = await import(`./server${process.argv[2]}.mjs`);

const say = text => ({ content: [{ type: 'text', text: String(text) }] });
const MOTTO = 'note://motto';
const FORM = { type: 'object', properties: { colour: { type: 'string' } }, required: ['colour'] };

// Return when the request was cancelled, which this SDK leaves to its handlers to notice.
const aborted = signal => new Promise(resolve => signal.addEventListener('abort', () => resolve(signal.reason)));

function build(context) {
  const server = new sdk.McpServer(
    { name: 'peer', version: '7.0', title: 'The peer' },
    { capabilities: { logging: {}, resources: { subscribe: true } }, instructions: 'Ask nicely.' },
  );
  const tool = (name, shape, run, rest = {}) =>
    server.registerTool(name, { inputSchema: z.object(shape), ...rest }, (args, context) =>
      run(args, sdk.request(server, context)),
    );
  const progress = (request, ...[progress, total, message]) =>
    request.notify('notifications/progress', { progressToken: request.token, progress, total, message });

  tool('echo', { text: z.string() }, ({ text }) => say(text), { description: 'Say it again.' });
  tool('weather', { city: z.string() }, ({ city }) => {
    const structuredContent = { city, celsius: 21.5 };
    return { ...say(JSON.stringify(structuredContent)), structuredContent };
  }, { outputSchema: z.object({ city: z.string(), celsius: z.number() }) });
  tool('exhibits', {}, () => ({
    content: [
      { type: 'text', text: 'text' },
      { type: 'image', data: 'iVBORwA=', mimeType: 'image/png' },
      { type: 'audio', data: 'UklGRg==', mimeType: 'audio/wav' },
      { type: 'resource_link', name: 'motto', uri: MOTTO },
      { type: 'resource', resource: { uri: MOTTO, text: 'never late', mimeType: 'text/plain' } },
    ],
  }));
  tool('fail', {}, () => {
    throw new Error('no luck today');
  });
  tool('die', {}, () => {
    console.error('out of luck');
    process.exit(3);
  });
  tool('retire', {}, () => {
    setImmediate(() => serving.close());
    return say('goodbye');
  });
  tool('babble', {}, () => {
    console.log('as if nobody were reading');
    return say('and on');
  });
  tool('count', { to: z.number().int() }, async ({ to }, request) => {
    for (let number = 1; number <= to; number++) await progress(request, number, to, `step ${number}`);
    return say(to);
  });
  tool('chatter', {}, async (_, request) => {
    await request.log('debug', 'whispered');
    await request.log('info', { said: 'aloud' }, 'mouth');
    await request.log('error', 'shouted');
    return say('said it all');
  });

  tool('hang', {}, async (_, request) => {
    note('hang began');
    const ended = aborted(request.signal);
    await progress(request, 1);
    await ended;
    note('hang ended');
  });
  tool('explain', {}, async (_, request) => {
    const ended = aborted(request.signal);
    await progress(request, 1);
    note(`told: ${await ended}`);
  });
  tool('stubborn', {}, async (_, request) => {
    const ended = aborted(request.signal);
    await progress(request, 1);
    await ended;
    try {
      await progress(request, 2);
      await request.log('error', 'too late');
    } finally {
      note('stubborn ended'); // in the modern era over HTTP the SDK refuses to notify whoever has gone
    }
    return say('too late');
  });

  const question = (text, maxTokens = 10) => ({
    messages: [{ role: 'user', content: { type: 'text', text } }],
    maxTokens,
    systemPrompt: 'Be brief.',
  });
  tool('ask_model', { question: z.string() }, async (args, request) => {
    try {
      const answer = await request.sample(question(args.question), { signal: request.signal });
      return say(`${answer.model}: ${answer.content.text}`);
    } finally {
      note('ask_model ended');
    }
  });
  tool('ask_in_haste', {}, async (_, request) => {
    const refusal = await request.sample(question('never'), { timeout: 200 }).catch(error => error);
    return say(refusal.message);
  });
  tool('ask_user', { message: z.string() }, async ({ message }, request) => {
    const answer = await request.elicit({ mode: 'form', message, requestedSchema: FORM });
    return say(`${answer.action} ${answer.content?.colour}`);
  });
  tool('send_user', { url: z.string() }, async ({ url }, request) => {
    const answer = await request.elicit({ mode: 'url', message: 'Sign in, please.', url, elicitationId: 'sign-in-1' });
    return say(answer.action);
  });
  tool('show_roots', {}, async (_, request) => say((await request.roots()).roots.map(root => root.uri)));
  tool('ping_back', {}, async () => say(JSON.stringify(await server.server.ping())));

  tool('come_back', {}, async (_, request) => {
    await progress(request, 1);
    request.comeBack();
    await progress(request, 2);
    return say('welcome back');
  });

  tool('hush', {}, async (_, request) => {
    request.hush();
    await server.server.sendToolListChanged();
    return say('changed');
  });

  tool('change', {}, async () => {
    if (context?.era === 'modern' && serving.notify) {
      serving.notify.toolsChanged();
      serving.notify.resourceUpdated(MOTTO);
      return say('changed');
    }
    await server.server.sendToolListChanged();
    await server.server.sendResourceUpdated({ uri: MOTTO });
    return say('changed');
  });
  for (const method of ['resources/subscribe', 'resources/unsubscribe']) {
    sdk.answer(server, method, ({ params }) => {
      note(`${method} ${params.uri}`);
      return {};
    });
  }
  sdk.hear(server, 'notifications/roots/list_changed', () => note('roots changed'));

  server.registerResource('motto', MOTTO, { mimeType: 'text/plain' }, uri => ({
    contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'never late, never lost' }],
  }));
  server.registerResource('dot', 'note://dot', { mimeType: 'image/png' }, uri => ({
    contents: [{ uri: uri.href, mimeType: 'image/png', blob: 'iVBORwA=' }],
  }));
  const complete = { title: (value, context) => [`${value} of ${context?.arguments?.author ?? 'nobody'}`] };
  const template = new sdk.ResourceTemplate('note://by/{author}/{title}', { list: undefined, complete });
  server.registerResource('note_by', template, {}, (uri, { author, title }) => ({
    contents: [{ uri: uri.href, text: `${title}, by ${author}` }],
  }));
  const names = ['Ada', 'Adele', 'Bob'];
  const argsSchema = {
    name: sdk.completable(z.string(), value => names.filter(name => name.startsWith(value))),
    tone: z.string().optional(),
  };
  server.registerPrompt('greet', { description: 'Words of welcome.', argsSchema }, ({ name, tone = 'warm' }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name} in a ${tone} tone.` } }],
  }));
  return server;
}

const serving = await sdk.serve(build);
