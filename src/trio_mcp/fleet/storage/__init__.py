"""Storages that the replicas of a server share: in memory, in a SQLite file, or in Redis."""
