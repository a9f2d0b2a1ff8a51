"""Serving: a server meets a transport."""
