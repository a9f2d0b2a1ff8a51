"""What is shown in a terminal, and what is typed there."""
