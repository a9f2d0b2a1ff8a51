"""Resource server: who calls, and what a caller may do (2026-07-28 authorization, for servers over HTTP)."""
