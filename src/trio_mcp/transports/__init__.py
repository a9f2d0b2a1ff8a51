"""Ways to carry whole messages. Each is a `MessageChannel`; none knows what a message means."""
