"""Context: a handler's view of its request, from a task or from a thread."""
