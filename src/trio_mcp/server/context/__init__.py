"""What a handler uses: its context, requests to the client, logging and tasks."""
