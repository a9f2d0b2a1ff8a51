"""Signatures: what the annotations of a handler say, as JSON Schema and as checks of arguments."""
