"""The client side of Streamable HTTP. Each message is sent in a POST of its own, and one transport receives the
messages in all responses."""
