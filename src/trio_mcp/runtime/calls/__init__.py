"""Calls: requests of ours, from the call to its end."""
