"""The terminal of the commands: what they show there, and what the user types."""
