"""Entry point of ``python -m trio_mcp.cli``, which does the same as ``trio-mcp``."""

from .main import main

if __name__ == "__main__":
    main()
