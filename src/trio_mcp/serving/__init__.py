"""Serving a server over each transport."""
