"""Proxying: servers that forward to another server, the upstream server, which is reached through a client."""
