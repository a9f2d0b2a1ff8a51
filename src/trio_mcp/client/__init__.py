"""The client API: call a server, and answer its requests to the client (sampling, elicitation, roots)."""
