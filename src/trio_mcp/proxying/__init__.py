"""Proxying: a server whose tools, resources and prompts are those of another one, reached through a client."""
