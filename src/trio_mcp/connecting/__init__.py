"""Functions that open a client, one for each transport."""
