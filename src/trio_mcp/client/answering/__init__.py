"""Answering: the questions of a server, and who answers them."""
