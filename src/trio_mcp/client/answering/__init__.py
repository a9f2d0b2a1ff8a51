"""Answering: the questions of a server, and the handlers that answer."""
