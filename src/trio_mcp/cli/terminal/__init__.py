"""The terminal of the commands: output and input."""
