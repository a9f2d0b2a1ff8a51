"""Servers that forward requests to another server, the upstream server, through a client."""
