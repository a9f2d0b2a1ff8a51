"""The clients that are measured, all doing the same. Each file is a program: ``FILE SERVER...``."""
