"""Probes: each drives a session, checks what came, and gives figures by the names of `benchmarks.measures`."""
