"""Tasks: the tasks that servers run for a client, in the form of the extension, and as their callers see them."""
