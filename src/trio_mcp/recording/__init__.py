"""Recordings of connections: how recordings are written, read back, drawn on one axis, and played again."""
