"""Black-box scenarios of cancellation and robustness, for any server or client: see ``trio-mcp torture``."""
