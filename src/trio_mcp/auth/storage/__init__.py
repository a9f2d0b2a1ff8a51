"""Storage: where a client stores its tokens, and what it stores for each authorization server."""
