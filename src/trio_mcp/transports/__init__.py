"""The channels that carry whole messages: each is a `MessageChannel`, and none knows what a message means."""
