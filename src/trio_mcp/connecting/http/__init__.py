"""Streamable HTTP on the client's side: each message is a POST, and all responses come together in one transport."""
