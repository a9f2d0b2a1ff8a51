"""Shared storage in Redis: the connection to Redis, and the stores that use it."""
