"""Servers: the work of the commands that serve a file's server, or bridge another one."""
