"""Context: what a handler sees of its request, from a task or from a thread."""
