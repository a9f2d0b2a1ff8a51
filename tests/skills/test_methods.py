"""Methods of the skills extension, and their capabilities (SEP-2640, Capability Negotiation)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import MethodUnavailable, Server, open_memory
from trio_mcp.protocol.types.offers import Resource
from trio_mcp.protocol.types.skills import ListSkillsResult, ReadDirectoryParams, ReadDirectoryResult
from trio_mcp.skills.loading import SKILLS, SkillsExtension
from trio_mcp.types import ServerCapabilities

NAME = "io.modelcontextprotocol/skills"


def test_skills_extension_declares_its_methods() -> None:
    rows = [SKILLS._listing, SKILLS._getting, SKILLS._reading]
    assert [row and row.name for row in rows] == ["skills/list", "skills/get", "resources/directory/read"]
    assert [row and row.cacheable for row in rows] == [True, True, False]
    assert [row and row.requires_client for row in rows] == [False] * 3
    assert SkillsExtension(directory_read=False)._reading is None


@pytest.mark.parametrize(
    ("extensions", "reads"),
    [
        (None, False),
        ({}, False),
        ({NAME: {}}, False),
        ({NAME: {"directoryRead": False}}, False),
        ({NAME: {"directoryRead": 1}}, False),
        ({NAME: "directoryRead"}, False),
        ({NAME: {"directoryRead": True}}, True),
    ],
)
def test_server_serves_skill_directory_reading_only_if_it_is_declared(extensions: Any, reads: bool) -> None:
    capabilities = ServerCapabilities(extensions=extensions)
    assert SKILLS._reading is not None
    assert SKILLS._serves(SKILLS._reading, capabilities) is reads
    assert SKILLS._serves(SKILLS._listing, capabilities)


@pytest.mark.parametrize("reads", [True, False])
async def test_listing_a_skill_directory_raises_method_unavailable_if_it_is_not_declared(reads: bool) -> None:
    extension: Any = SkillsExtension(directory_read=True)
    extension.server = {"directoryRead": True} if reads else {}
    asked: list[str] = []
    server = Server("s", extensions=[extension])
    server.handles(extension._listing)(lambda: ListSkillsResult([]))
    server.handles(extension._getting)(lambda: None)

    @server.handles(extension._reading)
    async def read(params: ReadDirectoryParams) -> ReadDirectoryResult:
        asked.append(params.uri)
        if params.cursor is None:
            return ReadDirectoryResult([Resource("skill://a/b", "b")], "2")
        return ReadDirectoryResult([Resource("skill://a/c", "c")])

    async with open_memory(server) as client:
        assert [skill async for skill in client.list_skills()] == []
        if reads:
            assert [each.name async for each in client.list_directory("skill://a")] == ["b", "c"]
        else:
            with pytest.raises(MethodUnavailable, match="with directoryRead"):
                [each async for each in client.list_directory("skill://a")]
    assert asked == ["skill://a"] * 2 * reads
