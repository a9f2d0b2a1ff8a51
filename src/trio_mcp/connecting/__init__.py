"""Connecting of a client over each transport."""
