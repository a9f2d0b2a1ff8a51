"""Logging of this package that doesn't block trio tasks."""
