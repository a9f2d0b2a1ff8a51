"""Diagnostics: logging of this package, in a way that never blocks a task."""
