"""``python -m trio_mcp.cli`` is ``trio-mcp``."""

from .main import main

if __name__ == "__main__":
    main()
