"""Requests: what the peer asks of us, from its admission to its end."""
