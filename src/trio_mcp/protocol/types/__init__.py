"""Types: one class for each thing that the specification names, grouped as the specification groups them."""
