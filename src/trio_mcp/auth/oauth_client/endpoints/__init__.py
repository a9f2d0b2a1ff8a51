"""Endpoints: how a client registers at an authorization server, names itself there, and asks for tokens."""
