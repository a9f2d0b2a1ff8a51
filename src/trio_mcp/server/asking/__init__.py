"""Asking: questions of a handler to its client, in either era, and the link between the rounds of one request."""
