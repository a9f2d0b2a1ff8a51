"""Requests of the peer, from admission to end."""
