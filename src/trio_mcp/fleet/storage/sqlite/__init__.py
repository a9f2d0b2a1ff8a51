"""Shared storage in a SQLite file, for processes on one machine."""
