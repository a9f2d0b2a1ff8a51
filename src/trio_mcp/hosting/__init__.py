"""Hosting of many servers at once, each supervised, behind one catalogue."""
