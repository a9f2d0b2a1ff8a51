"""Recordings of connections: write them to files, read them, draw them as timelines, and replay them."""
