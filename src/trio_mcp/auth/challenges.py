"""Challenges of ``WWW-Authenticate``: read and written."""
