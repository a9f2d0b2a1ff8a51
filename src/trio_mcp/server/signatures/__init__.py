"""Signatures: the annotations of a handler, as JSON Schema and as checks of arguments."""
