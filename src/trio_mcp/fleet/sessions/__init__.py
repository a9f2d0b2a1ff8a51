"""Legacy sessions that every replica serves: their state, streams and messages, in shared storage."""
