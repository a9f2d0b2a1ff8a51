"""The client side of Streamable HTTP. Each message is sent in a POST, and one transport merges the contents of all
responses."""
