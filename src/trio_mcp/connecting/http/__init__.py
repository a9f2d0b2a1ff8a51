"""Streamable HTTP, the client's side: each message is a POST, and the answers come together in one transport."""
