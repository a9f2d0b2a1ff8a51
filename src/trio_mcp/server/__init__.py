"""The server API, in three folders.

``offers`` has what authors declare, ``calling`` how a handler is called, ``context`` what a handler sees. Here are the
`Server` itself, its connections, middleware and subscriptions.
"""
