"""Functions that serve a server over each transport."""
