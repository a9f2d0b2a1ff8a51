"""The tests that every store of tasks has to pass, in groups, and the suite of all groups."""
