"""The channels that carry whole messages: each is a `MessageChannel` without any knowledge of the messages' meaning."""
