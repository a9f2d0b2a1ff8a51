"""Proxies and gateways: servers that forward requests to another server (the upstream server) through a client."""
