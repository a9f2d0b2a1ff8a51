"""What handlers use: their context, requests to the client, logging and tasks."""
