"""Core: tasks in the form of 2025-11-25, of which requests ask and tell."""
