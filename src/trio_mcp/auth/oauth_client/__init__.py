"""OAuth client: how a client gets a token for a protected server, keeps the token good, and sends the token there
alone.

The rules are generators without any I/O: each yields a `Delivery` and is sent the outcome.
"""
