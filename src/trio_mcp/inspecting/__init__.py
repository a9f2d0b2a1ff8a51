"""The web inspector (``trio-mcp inspect --web``): a page in the browser to inspect a server and to call it.

Our own HTTP server serves the page on loopback. Only requests with the token in the page's address are accepted.
"""
