"""The functions that open clients, over each transport."""
