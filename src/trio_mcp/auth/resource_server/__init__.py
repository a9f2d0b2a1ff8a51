"""Resource server: identifies callers and what they may do (2026-07-28 authorization, for servers over HTTP)."""
