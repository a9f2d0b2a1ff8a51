"""Resource server: identifies the callers of a server over HTTP and checks their permissions (2026-07-28
authorization)."""
