"""Calling: the requests of a client, with what is asked back and what is kept of the answers."""
