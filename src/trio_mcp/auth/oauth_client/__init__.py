"""The OAuth client: gets a token for a protected server, refreshes the token, and sends it only to that server.

The protocol logic is written as generators without I/O: each yields a `Delivery` and is sent the outcome.
"""
