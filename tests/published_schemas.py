"""What the published schemas demand of documents that describe a server, in few words: the members that there may be,
and their forms. The sources, each under a licence that lets it be quoted:

- server card: schema.ts of github.com/modelcontextprotocol/experimental-ext-server-card (Apache 2.0), of 2026-07-24;
- `server.json`: schema 2025-12-11 of github.com/modelcontextprotocol/registry (MIT);
- manifest of a bundle: version 0.4 of github.com/modelcontextprotocol/mcpb (MIT), of 2025-12-03.

Unknown members are refused here, though cards and `server.json` may have them: those written here have none.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

TEXT: dict[str, Any] = {"type": "string"}
URL: dict[str, Any] = {"type": "string", "format": "uri"}


def texts(shortest: int, longest: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": longest, **more}


def members(required: str, /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "properties": {name.replace("dollar_", "$"): form for name, form in properties.items()},
        "additionalProperties": False,
    }


def many(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": form}


NAME = texts(3, 200, pattern="^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$")
REPOSITORY = members("url source", url=URL, source=TEXT, subfolder=TEXT, id=TEXT)
ENDPOINT_URL = {"type": "string", "pattern": r"^(https?://[^\s]+|\{[a-zA-Z_][a-zA-Z0-9_]*\}[^\s]*)$"}
THEME = {"enum": ["light", "dark"]}

CARD = members(
    "$schema name version description",
    dollar_schema={"const": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"},
    name=NAME,
    version=texts(0, 255),
    description=texts(1, 100),
    title=texts(1, 100),
    websiteUrl=URL,
    repository=REPOSITORY,
    icons=many(members("src", src=URL, mimeType=TEXT, sizes=many(TEXT), theme=THEME)),
    remotes=many(
        members(
            "type url",
            type={"enum": ["streamable-http", "sse"]},
            url=ENDPOINT_URL,
            supportedProtocolVersions=many(TEXT),
        )
    ),
)

SERVER_JSON = members(
    "name description version",
    dollar_schema={"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
    name=NAME,
    version=texts(0, 255),
    description=texts(1, 100),
    title=texts(1, 100),
    websiteUrl=URL,
    repository=REPOSITORY,
    icons=many(
        members(
            "src",
            src={**URL, "maxLength": 255, "pattern": "^https://"},
            mimeType={"enum": ["image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"]},
            sizes=many({"type": "string", "pattern": r"^(\d+x\d+|any)$"}),
            theme=THEME,
        )
    ),
    packages=many(
        members(
            "registryType identifier transport",
            registryType={"enum": ["npm", "pypi", "cargo", "oci", "nuget", "mcpb"]},
            identifier=TEXT,
            version=texts(1, 255, **{"not": {"const": "latest"}}),
            fileSha256={"type": "string", "pattern": "^[a-f0-9]{64}$"},
            transport=members("type", type={"const": "stdio"}),
        )
    ),
    remotes=many(members("type url", type={"enum": ["streamable-http", "sse"]}, url=ENDPOINT_URL)),
)

MANIFEST = members(
    "manifest_version name version description author server",
    manifest_version={"const": "0.4"},
    name=TEXT,
    display_name=TEXT,
    version=TEXT,
    description=TEXT,
    long_description=TEXT,
    author=members("name", name=TEXT, email=TEXT, url=URL),
    homepage=URL,
    license=TEXT,
    server=members(
        "type entry_point mcp_config",
        type={"enum": ["python", "node", "binary", "uv"]},
        entry_point=TEXT,
        mcp_config=members(
            "command", command=TEXT, args=many(TEXT), env={"type": "object", "additionalProperties": TEXT}
        ),
    ),
    tools=many(members("name", name=TEXT, description=TEXT)),
    tools_generated={"type": "boolean"},
    prompts_generated={"type": "boolean"},
    compatibility=members(
        "",
        platforms=many({"enum": ["darwin", "win32", "linux"]}),
        runtimes=members("", python=TEXT, node=TEXT),
    ),
)


def faults(schema: dict[str, Any], document: Any) -> list[str]:
    """What is wrong with ``document``."""
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return [f"{error.message} at {list(error.instance_path)}" for error in validator.iter_errors(document)]
