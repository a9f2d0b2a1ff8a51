"""Logging of this package, in a way that never blocks a trio task."""
