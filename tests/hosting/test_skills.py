"""Skills of the members of a group: each is known by its member and its URI, never by its name (SEP-2640)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bridging.seen import run

from trio_mcp import InMemory, Server, Skills, aio, blocking
from trio_mcp.hosting import GroupSkill, MemberDescription, open_group
from trio_mcp.hosting.catalogue import catalogue_uri, parse_uri
from trio_mcp.protocol.types.skills import ListSkillsResult
from trio_mcp.skills.loading import SkillsExtension


def member(*names: str, prefix: str = "") -> MemberDescription:
    skills = Skills()
    for name in names:
        text = f"---\nname: {name}\ndescription: What it is for\n---\n"
        skills.add_files(name, {"SKILL.md": text, "more/x": f"{prefix}{name}"}, prefix)
    return MemberDescription(InMemory(Server("s", extensions=[skills])))


def broken() -> MemberDescription:
    """A member whose skills cannot be listed."""
    extension: Any = SkillsExtension(directory_read=False)
    server = Server("broken", extensions=[extension])

    @server.handles(extension._listing)
    async def fail() -> ListSkillsResult:
        raise RuntimeError

    server.handles(extension._getting)(fail)
    return MemberDescription(InMemory(server))


async def test_group_lists_all_skills_and_marks_skill_names_that_two_servers_share() -> None:
    members = {
        "one": member("pdf", "refunds"),
        "two": member("pdf"),
        "none": MemberDescription(InMemory(Server("plain"))),
        "three": member("notes", prefix="acme"),
    }
    async with open_group(members) as group:
        await group.settled()
        found = await group.skills()
        assert [(each.member, each.skill.name, each.shares_name) for each in found] == [
            ("one", "pdf", True),
            ("one", "refunds", False),
            ("two", "pdf", True),
            ("three", "notes", False),
        ]
        assert [each.uri for each in found][2:] == ["skill://two/pdf/SKILL.md", "skill://three/acme/notes/SKILL.md"]
        loaded = await group.load_skill(found[3])
        assert await loaded.read("more/x") == "acmenotes"
        (part,) = (await group.read_resource("skill://two/pdf/more/x")).contents
        assert part.uri == "skill://pdf/more/x"


async def test_group_skips_a_server_that_cannot_list_its_skills(caplog: pytest.LogCaptureFixture) -> None:
    async with open_group({"broken": broken(), "one": member("pdf")}) as group:
        await group.settled()
        assert [each.member for each in await group.skills()] == ["one"]
    assert "the skills of member broken cannot be listed" in caplog.text


async def test_group_without_servers_has_no_skills() -> None:
    async with open_group({}) as group:
        assert await group.skills() == []


@pytest.mark.parametrize("name", ["one", "a/b", "ü", "a b", "..", "%2f"])
def test_group_uri_of_a_skill_starts_with_the_server_name(name: str) -> None:
    uri = catalogue_uri(name, "skill://acme/pdf/SKILL.md")
    assert uri.startswith("skill://")
    assert uri.endswith("/acme/pdf/SKILL.md")
    assert parse_uri(uri) == (name, "skill://acme/pdf/SKILL.md")


def test_asyncio_and_blocking_groups_list_and_load_skills() -> None:
    async def main() -> list[GroupSkill]:
        async with aio.open_group({"one": member("pdf")}) as group:
            await group.settled()
            found = await group.skills()
            assert await (await group.load_skill(found[0])).read("more/x") == "pdf"
            return found

    with blocking.open_group({"one": member("pdf")}) as group:
        group.settled()
        found = group.skills()
        assert group.load_skill(found[0]).read("more/x") == "pdf"
    assert run(main) == found
