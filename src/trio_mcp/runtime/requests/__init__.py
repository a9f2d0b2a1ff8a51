"""Handling of incoming requests, from the admission of a request until its end."""
