"""Creates tools from OpenAPI documents: `trio_mcp.from_openapi`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2 as httpx2
else:
    from ..lazy import extra

    httpx2 = extra("httpx2", "from_openapi needs httpx2: install 'trio-mcp[openapi]'")
