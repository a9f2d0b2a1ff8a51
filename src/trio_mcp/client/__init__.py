"""The client API: call a server, and answer its questions (sampling, elicitation, roots)."""
