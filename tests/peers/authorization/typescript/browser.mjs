// A user with a browser: opens the sign-in page, presses the button, and says where the browser is sent in the end.

export async function signIn(url, redirectUri) {
  const cookies = new Map();
  let body;
  for (;;) {
    const headers = { cookie: [...cookies.values()].join('; ') };
    const response = await fetch(url, { method: body ? 'POST' : 'GET', body, headers, redirect: 'manual' });
    for (const cookie of response.headers.getSetCookie()) cookies.set(cookie.split('=')[0], cookie.split(';')[0]);
    body = undefined;
    const location = response.headers.get('location');
    if (location === null) {
      body = new URLSearchParams({ answer: 'allow' });
      continue;
    }
    url = new URL(location, url).href;
    if (url.startsWith(redirectUri)) return new URL(url).searchParams;
  }
}
