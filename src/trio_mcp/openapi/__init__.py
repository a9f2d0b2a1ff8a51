"""Here the operations of an OpenAPI document become the tools of a server: `trio_mcp.from_openapi`."""

from importlib.util import find_spec

if find_spec("httpx2") is None:  # which all modules here need
    raise ImportError("from_openapi needs httpx2: install 'trio-mcp[openapi]'")
