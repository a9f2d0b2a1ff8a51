"""The commands with their arguments, options and help."""
