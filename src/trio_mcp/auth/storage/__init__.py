"""Token storage: where a client stores its OAuth tokens (memory, files or keyring), and the records it stores."""
