"""Fetching: requests to URLs that a server dictates, within bounds (2026-07-28 security best practices, SSRF)."""
