"""Listening: being told of changes by a modern server, on streams."""
