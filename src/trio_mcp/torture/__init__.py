"""Black-box scenarios that test cancellation and robustness of any server or client: see ``trio-mcp torture``."""
