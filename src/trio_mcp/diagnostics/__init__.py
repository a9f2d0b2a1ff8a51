"""Diagnostics: the log of this package, written without making any task wait."""
