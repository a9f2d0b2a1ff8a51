"""Storage: the places where a client stores its tokens, and the data it stores for each authorization server."""
