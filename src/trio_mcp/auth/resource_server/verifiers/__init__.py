"""Verifiers: ways to tell for whom a token speaks, by its signature or by a question to its issuer."""
