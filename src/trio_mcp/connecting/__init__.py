"""Connecting: a client meets a transport."""
