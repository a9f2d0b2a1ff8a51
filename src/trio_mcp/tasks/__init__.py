"""Tasks: work that outlives its request, and the two protocol versions of tasks."""
