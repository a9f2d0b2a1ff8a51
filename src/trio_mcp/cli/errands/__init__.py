"""Errands: what each command does with a server that somebody else runs."""
