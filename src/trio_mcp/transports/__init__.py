"""The transports that carry whole messages: each is a `FramedTransport` without any knowledge of the messages' meaning.

`streams.py` has short cuts for streams of bytes, `host_checks.py` keeps foreign web pages away. `http` is the HTTP of a
server and `http_client` the HTTP of a client; neither room knows the other, and both use `sse.py`.
"""
