"""Serving over Streamable HTTP, for modern and legacy protocol revisions.

`HttpEndpoint` routes each request. A modern request has an exchange of its own (`stateless.py`). A request of a legacy
revision belongs to a session (`session.py`) or, with ``stateless=True``, to none (`stateless.py` again). Reading and
writing bytes is the job of `trio_mcp.transports.http`.
"""
