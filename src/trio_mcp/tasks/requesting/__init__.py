"""Requesting: tasks that a peer runs for us, in the form of 2025-11-25, and all that both forms share."""
