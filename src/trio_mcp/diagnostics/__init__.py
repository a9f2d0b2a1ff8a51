"""Diagnostics: the log of this package, and how it is written without making anybody wait."""
