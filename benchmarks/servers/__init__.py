"""The servers that are measured, with the same tools. Each file is a program."""
