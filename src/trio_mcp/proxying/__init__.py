"""Proxying: a server whose tools, resources and prompts are those of another server, reached through a client."""
