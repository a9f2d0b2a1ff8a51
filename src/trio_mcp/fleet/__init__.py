"""Replicas: what several processes of one server share, and how they exchange messages."""
