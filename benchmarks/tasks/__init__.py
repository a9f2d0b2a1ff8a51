"""What tasks cost: the memory of those that wait, and the time of their methods."""
