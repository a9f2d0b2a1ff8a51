"""Servers: what the commands that serve do."""
