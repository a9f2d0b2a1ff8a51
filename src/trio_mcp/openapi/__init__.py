"""Here the operations of an OpenAPI document become the tools of a server: `trio_mcp.from_openapi`."""
