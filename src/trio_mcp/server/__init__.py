"""The server API: the things that a server offers, and the context its handlers see."""
