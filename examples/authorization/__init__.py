"""A client gets a token for a protected server from a real authorization server, gets more, and loses it again.

In a clone of the repository, with Node.js 22 or newer and npm:

    pip install -e '.[cli,auth]'
    python -m examples.authorization
    python -m examples.authorization --browser

With ``--browser`` you sign in yourself, in your browser; else the program presses the button. `provider` installs and
starts oidc-provider, once into the cache of the user; `protected_server` is the server; `demo` is the client.
"""
