"""Calling: the requests of a client, with the questions that come back and the answers that are kept."""
