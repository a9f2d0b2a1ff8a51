"""What a handler sees: its context, questions to the client, logs and tasks."""
