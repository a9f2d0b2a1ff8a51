"""Shared storage in Redis: the link to the server, and the stores that use the link."""
