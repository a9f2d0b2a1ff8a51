"""Listening: the changes that a modern server reports on streams."""
