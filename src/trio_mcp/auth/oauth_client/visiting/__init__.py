"""Visiting: the user's browser goes to an authorization server, and comes back."""
