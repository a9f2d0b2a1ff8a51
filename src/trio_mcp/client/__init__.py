"""The client API: calling a server, and answering its questions."""
