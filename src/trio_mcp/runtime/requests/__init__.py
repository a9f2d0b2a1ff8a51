"""Requests of the peer, from admission until their end."""
