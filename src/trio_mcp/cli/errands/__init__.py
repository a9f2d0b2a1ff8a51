"""Errands: the work of each command with a running server."""
