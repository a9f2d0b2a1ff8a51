"""Skills behind proxies: each client lists, gets and reads them in its own revision, over any connection (SEP-2640)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.proxying.conftest import Proxied

from trio_mcp import (
    CacheHints,
    Extension,
    MethodUnavailable,
    PeerError,
    Server,
    SkillChanged,
    Skills,
    open_memory,
)

NAME, PDF = "io.modelcontextprotocol/skills", "skill://pdf/SKILL.md"


def text_of(name: str) -> str:
    return f"---\nname: {name}\ndescription: What it is for\nmetadata: {{z: 1, a: [true]}}\n---\nBody\n"


@pytest.fixture
def skills() -> Skills:
    skills = Skills()
    skills.add_files("pdf", {"SKILL.md": text_of("pdf"), "references/FORMS.md": "Forms\r\n", "logo.png": b"\x89\xff"})
    skills.add_files("refunds", {"SKILL.md": text_of("refunds")}, prefix="acme", listed=False)
    return skills


async def test_skills_are_those_of_the_server_behind(proxied: Proxied, skills: Skills, front: Any) -> None:
    server = Server("s", extensions=[skills])
    async with open_memory(server) as client:
        straight = [skill async for skill in client.list_skills()]
    async with proxied(server) as middle, open_memory(middle, era=front) as client:
        assert (client.server_capabilities.extensions or {})[NAME] == {"directoryRead": True}
        assert [skill async for skill in client.list_skills()] == straight
        loaded = await client.load_skill(straight[0])
        assert await loaded.read("references/FORMS.md") == "Forms\r\n"
        assert await loaded.read("logo.png") == b"\x89\xff"
        assert (await client.get_skill("skill://acme/refunds/SKILL.md")).name == "refunds"
        assert [each.name async for each in client.list_directory("skill://pdf")] == ["pdf", "logo.png", "references"]
        with pytest.raises(PeerError) as caught:
            await client.get_skill("skill://none/SKILL.md")
        assert caught.value.code == -32602
        skills.remove("pdf")
        skills.add_files("pdf", {"SKILL.md": text_of("pdf"), "references/FORMS.md": "Other"})
        with pytest.raises(SkillChanged):
            await loaded.read("references/FORMS.md")


async def test_hints_are_of_the_revision_of_the_client(proxied: Proxied, skills: Skills, front: Any, back: Any) -> None:
    server = Server("s", extensions=[skills], cache=CacheHints(60_000, "public"))
    async with proxied(server) as middle, open_memory(middle, era=front, extensions=[Skills()]) as client:
        for method, params in (("skills/list", {}), ("skills/get", {"uri": PDF})):
            result = await client.request(method, params, dict[str, Any])
            # SEP-2640: the hints are REQUIRED in 2026-07-28, and legacy revisions do not have them.
            hints = {name: result[name] for name in ("ttlMs", "cacheScope", "resultType") if name in result}
            if front == "legacy":
                assert hints == {}
            elif back == "legacy":
                assert hints == {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
            else:
                assert hints == {"ttlMs": 60_000, "cacheScope": "public", "resultType": "complete"}


async def test_a_server_without_skills_has_none_behind_a_proxy(proxied: Proxied, front: Any) -> None:
    for server in (Server("plain"), Server("other", extensions=[Extension("com.example/other")])):
        async with proxied(server) as middle, open_memory(middle, era=front, extensions=[Skills()]) as client:
            with pytest.raises(MethodUnavailable):
                [skill async for skill in client.list_skills()]
            with pytest.raises(PeerError) as caught:
                await client.request("skills/list", {}, dict[str, Any])
            assert caught.value.code == -32601


async def test_skills_let_no_other_extension_through(proxied: Proxied, skills: Skills, front: Any) -> None:
    """To declare skills is not to declare whatever else a client asks for."""
    other = Extension("com.example/other")
    row = other.method("com.example/other/do", dict[str, Any], dict[str, Any])
    server = Server("s", extensions=[skills])
    async with proxied(server) as middle, open_memory(middle, era=front, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(row.name, {}, dict[str, Any])
        assert caught.value.code == -32601
