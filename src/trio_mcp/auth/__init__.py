"""Authorization: who calls a server over HTTP, and how a client gets a token (2026-07-28 authorization).

`resource_server` checks the tokens of clients, `oauth_client` gets tokens for calls, `storage` keeps them; `fetching`
asks the URLs that a stranger has named.
"""
