"""Asking: how a handler asks its client, in either era, and what links the rounds of one request."""
