"""Diagnostics: what this package logs itself, and how that gets out without holding anybody up."""
