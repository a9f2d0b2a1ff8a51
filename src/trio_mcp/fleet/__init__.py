"""Replicas: processes that run the same server. They share state in a storage, and exchange messages."""
