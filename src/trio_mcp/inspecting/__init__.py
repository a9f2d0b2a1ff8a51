"""A page in the browser to look at a server and to use the server: ``trio-mcp inspect --web``. The page is served on
loopback alone, by our own HTTP server, and only to whom its address was told.
"""
