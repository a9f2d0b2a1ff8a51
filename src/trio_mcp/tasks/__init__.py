"""Background tasks: a request that is answered at once with a task, while its work continues. Both forms are supported:
2025-11-25, and the tasks extension."""
