"""Handling of incoming requests, from admission until their end."""
