"""Proofs of DPoP (RFC 9449)."""
