// A client of the TypeScript SDK with OAuth: node typescript_authorized.mjs 1|2 legacy|modern URL [dpop]. It tells what it saw.
import { signIn } from './browser.mjs';
import { step, tell } from './report.mjs';

const [release, era, url, scheme] = process.argv.slice(2);
const { newClient, overHttp, newDpop } = await import(`./oauth${release}.mjs`);

const visits = [];
const provider = {
  redirectUrl: 'http://localhost:3000/callback',
  clientMetadata: {
    client_name: 'typescript',
    redirect_uris: ['http://localhost:3000/callback'],
    application_type: 'native',
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => provider.client,
  saveClientInformation: client => void (provider.client = client),
  tokens: () => provider.kept,
  saveTokens: tokens => void (provider.kept = tokens),
  saveCodeVerifier: verifier => void (provider.verifier = verifier),
  codeVerifier: () => provider.verifier,
  redirectToAuthorization: async authorization => {
    visits.push(authorization.searchParams);
    provider.callback = await signIn(authorization.href, provider.redirectUrl);
  },
};
if (scheme === 'dpop') {
  const session = await newDpop();
  provider.dpop = () => session;
}

// The SDK throws where the user is asked, and leaves it to its users to go on.
async function authorized(run) {
  for (let asked = 0; ; asked++) {
    const before = visits.length;
    try {
      return await run();
    } catch (error) {
      if (visits.length === before || asked === 2) throw error;
      await transport.finishAuth(overHttp.takesParameters ? provider.callback : provider.callback.get('code'));
    }
  }
}

let client;
let transport;
await step('opening', () => authorized(async () => {
  client = newClient({ name: 'typescript', version: release }, era);
  transport = overHttp.make(new URL(url), provider);
  await client.connect(transport);
}));
const call = name => authorized(async () => (await client.callTool({ name, arguments: {} })).structuredContent);
await step('whoami', () => call('whoami'));
await step('write', () => call('write'));
await step('whoami again', () => call('whoami'));
tell('asked for', { saw: visits.map(visit => [visit.get('resource'), visit.get('scope')]) });
tell('token type', { saw: provider.kept?.token_type });
await client.close();
