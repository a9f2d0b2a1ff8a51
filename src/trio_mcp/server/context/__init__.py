"""What a handler sees: its context, questions to the client, logging and tasks."""
