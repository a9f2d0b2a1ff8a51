"""The commands, one per module: their arguments, options and help, and what they do."""
