"""Storages that replicas share: in memory, in a SQLite file, or in Redis."""
