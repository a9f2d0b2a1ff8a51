"""OAuth client: how a client gets a token for a protected server, keeps it good, and sends it there alone.

The rules are generators without any I/O: each yields a `Step` and is sent the outcome.
"""
