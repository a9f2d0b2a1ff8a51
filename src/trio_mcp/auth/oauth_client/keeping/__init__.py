"""Keeping: the tokens for one server, gotten once for all who wait, kept good, and stored."""
