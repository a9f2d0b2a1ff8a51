"""Servers: what the commands do that serve the server of a file, or bridge another one."""
