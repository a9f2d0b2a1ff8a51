"""Storage: where the tokens of a client are kept, and what is kept of each authorization server."""
