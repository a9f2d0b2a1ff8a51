"""What the hot paths execute, against a recorded budget: the guard in CI. Counts cannot flake as times do."""
