"""Types: one class for each concept of the specification, grouped as in the specification."""
