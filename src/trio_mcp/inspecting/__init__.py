"""The web inspector (``trio-mcp inspect --web``): a web page with which the user inspects and calls a server.

Our own HTTP server serves the page on loopback. Only requests with the token in the page's address are accepted.
"""
