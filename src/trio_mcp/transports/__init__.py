"""Transports: each one is a `FramedTransport`, which sends and receives whole messages without parsing them.

`streams.py` makes byte streams faster, and `host_checks.py` keeps foreign web pages away. `http` is the server's side
of HTTP, and `http_client` the client's side. They don't import each other, and both use `sse.py`.
"""
