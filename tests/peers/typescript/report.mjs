// A report: what a client saw, as JSON lines on standard output.

export const tell = (step, entry) => process.stdout.write(`${JSON.stringify({ step, ...entry })}\n`);

// Take down one step; one that fails costs only itself.
export async function step(name, run) {
  try {
    tell(name, { saw: (await run()) ?? null });
  } catch (error) {
    const { code = null, data = null } = error;
    tell(name, { raised: error.constructor.name, code, message: error.message, data });
  }
}

// All messages of a transport, in both directions, from before it is connected.
export class Wire {
  sent = [];
  got = [];

  constructor(transport) {
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
      this.sent.push(message);
      return send(message, options);
    };
    transport.onmessage = message => this.got.push(message); // the client adds its own
  }

  get cancels() {
    return this.sent.filter(message => message.method === 'notifications/cancelled').map(message => message.params);
  }

  // What came for a request: its progress, and its answer.
  about(id) {
    return this.got.filter(message => (message.method ? message.params?.progressToken : message.id) === id);
  }

  // Answers to what was cancelled.
  get late() {
    return this.cancels.flatMap(({ requestId }) => this.about(requestId)).filter(message => !message.method);
  }
}
