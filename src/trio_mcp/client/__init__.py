"""The client API: calling a server, and answering what it asks."""
