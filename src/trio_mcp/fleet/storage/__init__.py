"""Storages that replicas share: in memory, in a SQLite file, in Redis."""
