"""Tasks: work that outlives its request, and the two protocols that tell of tasks."""
