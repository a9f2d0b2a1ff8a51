"""Proxying: a server that offers the tools, resources and prompts of another server, reached through a client."""
