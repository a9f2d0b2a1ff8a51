"""Servers of other people, ported: the same tools under the same names, as one writes them with trio-mcp."""
