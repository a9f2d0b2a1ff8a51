// A server written with 2.x that asks its client by its answers, from one text for both eras, over stdio or HTTP.
import { McpServer, acceptedContent, inputRequired } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { serveBothEras } from './both_eras.mjs';
import { note } from './journal.mjs';

const SHIRT = z.object({ colour: z.string(), size: z.number().default(40) });
const say = text => ({ content: [{ type: 'text', text: String(text) }] });
const question = text => ({ messages: [{ role: 'user', content: { type: 'text', text } }], maxTokens: 10 });
const shirt = inputRequired.elicit({ message: 'Which shirt?', requestedSchema: SHIRT });
const slogan = text => inputRequired.createMessage(question(text));

serveBothEras(() => {
  const server = new McpServer({ name: 'asking', version: '7.0' });
  const tool = (name, run) => server.registerTool(name, { inputSchema: z.object({}) }, (_, { mcpReq }) => run(mcpReq));

  tool('all_at_once', ({ inputResponses: answers }) => {
    note(answers ? 'all_at_once has answers' : 'all_at_once asks');
    if (!answers) {
      return inputRequired({
        inputRequests: { shirt, slogan: slogan('A slogan?'), roots: inputRequired.listRoots() },
        requestState: 'asked',
      });
    }
    const { colour, size } = acceptedContent(answers, 'shirt', SHIRT);
    return say(`${colour} ${size}, ${answers.slogan.content.text}, ${answers.roots.roots[0].uri}`);
  });
  tool('one_after_another', ({ inputResponses: answers, requestState }) => {
    if (!answers) return inputRequired({ inputRequests: { shirt } });
    if (requestState() === undefined) {
      const { colour } = acceptedContent(answers, 'shirt', SHIRT);
      return inputRequired({ inputRequests: { slogan: slogan(`Name a ${colour} shirt.`) }, requestState: colour });
    }
    return say(`${requestState()}, ${answers.slogan.content.text}`);
  });
  tool('send_user', ({ inputResponses: answers }) =>
    answers
      ? say(answers.sign_in.action)
      : inputRequired({
          inputRequests: {
            sign_in: inputRequired.elicitUrl({ message: 'Sign in, please.', url: 'https://example.com/sign-in' }),
          },
        }),
  );
  tool('count_to_five', ({ requestState }) => {
    const reached = Number(requestState() ?? 0) + 1;
    return reached > 5 ? say('there') : inputRequired({ requestState: String(reached) });
  });
  tool('rude', () => inputRequired({ inputRequests: { slogan: slogan('rude') } }));
  tool('insatiable', ({ requestState }) =>
    inputRequired({ inputRequests: { slogan: slogan('More?') }, requestState: `${requestState() ?? ''}.` }),
  );

  server.registerPrompt('greet', { argsSchema: z.object({}) }, (_, { mcpReq: { inputResponses: answers } }) => {
    if (!answers) return inputRequired({ inputRequests: { shirt } });
    const { colour } = acceptedContent(answers, 'shirt', SHIRT);
    return { messages: [{ role: 'user', content: { type: 'text', text: `a ${colour} greeting` } }] };
  });
  server.registerResource('places', 'places://all', {}, (uri, { mcpReq: { inputResponses: answers } }) => {
    if (!answers) return inputRequired({ inputRequests: { roots: inputRequired.listRoots() } });
    return { contents: [{ uri: uri.href, text: answers.roots.roots[0].uri }] };
  });
  return server;
});
