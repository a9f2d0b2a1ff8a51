"""Recordings of connections: writing them to files, reading them, drawing them as timelines, and replaying them."""
