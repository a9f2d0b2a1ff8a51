"""Utilities for trio tasks, threads and time limits. They don't depend on the rest of the package."""
