"""HTTP: a server as an endpoint of Streamable HTTP, for both eras.

`HttpEndpoint` routes each request. A request of the modern era belongs to an exchange of its own (`stateless.py`), a
request of a legacy revision to a session (`session.py`) or, without state, to nothing (`stateless.py` again). The way
of bytes is in `trio_mcp.transports.http`.
"""
