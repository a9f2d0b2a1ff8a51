"""Serving of a server over each transport."""
