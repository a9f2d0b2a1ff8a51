"""Offers: the tools, resources and prompts of a server, and how their functions are run."""
