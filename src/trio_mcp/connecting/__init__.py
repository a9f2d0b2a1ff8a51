"""Opening clients over each transport."""
