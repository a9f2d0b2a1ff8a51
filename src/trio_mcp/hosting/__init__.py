"""Hosting: many servers at once, each supervised, behind one catalogue."""
