"""The commands, one in each file: arguments, options and help, and the work of the command."""
