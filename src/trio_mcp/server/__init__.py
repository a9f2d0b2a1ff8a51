"""The API for writing and running servers.

- ``offers``: what authors declare (tools, resources, prompts, skills).
- ``calling``: how a handler is called.
- ``context``: what a handler sees.
- The modules here: `Server` itself, its connections, middleware and subscriptions.
"""
