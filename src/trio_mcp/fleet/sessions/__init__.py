"""Legacy sessions that every replica can serve: their state, streams and messages are in shared storage."""
