"""The server API: the offers of a server, and the context of its handlers."""
