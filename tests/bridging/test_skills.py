"""Skills of a server, for asyncio programs and for scripts."""

from __future__ import annotations

import pytest
from tests.bridging.seen import run

from trio_mcp import Server, SkillChanged, Skills, aio, blocking


@pytest.fixture
def server() -> Server:
    skills = Skills()
    skills.add_files("pdf", {"SKILL.md": "---\nname: pdf\ndescription: PDF\n---\n", "references/FORMS.md": "Forms"})
    return Server("s", extensions=[skills])


def test_asyncio_client_lists_loads_and_reads_skills(server: Server) -> None:
    async def main() -> None:
        async with aio.open_memory(server) as client:
            (skill,) = [skill async for skill in client.list_skills()]
            loaded = await client.load_skill(skill)
            assert isinstance(loaded, aio.LoadedSkill)
            assert (loaded.entry, await client.get_skill(skill.uri)) == (skill, skill)
            assert await loaded.read("references/FORMS.md") == "Forms"
            assert [each.name async for each in client.list_directory("skill://pdf")] == ["pdf", "references"]
            with pytest.raises(SkillChanged):
                await loaded.read("none")

    run(main)


def test_blocking_client_lists_loads_and_reads_skills(server: Server) -> None:
    with blocking.open_memory(server) as client:
        (skill,) = client.list_skills()
        loaded = client.load_skill(skill)
        assert isinstance(loaded, blocking.LoadedSkill)
        assert loaded.text.startswith("---")
        assert loaded.read("references/FORMS.md") == "Forms"
        assert [each.name for each in client.list_directory("skill://pdf")] == ["pdf", "references"]
        with pytest.raises(SkillChanged):
            loaded.read("none")
