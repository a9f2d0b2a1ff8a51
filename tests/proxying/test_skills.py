"""Skills behind proxies: each client lists, gets and reads them in its own revision, over any connection (SEP-2640)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from tests.hosting.test_skills import broken
from tests.proxying.conftest import Proxied
from trio.testing import MockClock

from trio_mcp import (
    CacheHints,
    Client,
    InMemory,
    MethodUnavailable,
    PeerError,
    Server,
    SkillChanged,
    Skills,
    gateway,
    open_memory,
)
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.skills.loading import SkillsExtension
from trio_mcp.types import Extension

NAME, PDF = "io.modelcontextprotocol/skills", "skill://pdf/SKILL.md"


def slow() -> MemberDescription:
    """A member that never answers about its skills."""
    extension: Any = SkillsExtension(directory_read=False)
    server = Server("slow", extensions=[extension])
    for row in (extension._listing, extension._getting):
        server.handles(row)(trio.sleep_forever)
    return MemberDescription(InMemory(server), options={"call_timeout": 3})


def text_of(name: str) -> str:
    return f"---\nname: {name}\ndescription: What it is for\nmetadata: {{z: 1, a: [true]}}\n---\nBody\n"


@pytest.fixture
def skills() -> Skills:
    skills = Skills()
    skills.add_files("pdf", {"SKILL.md": text_of("pdf"), "references/FORMS.md": "Forms\r\n", "logo.png": b"\x89\xff"})
    skills.add_files("refunds", {"SKILL.md": text_of("refunds")}, prefix="acme", listed=False)
    return skills


async def test_proxy_serves_the_skills_of_its_backend(proxied: Proxied, skills: Skills, front: Any) -> None:
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


async def test_proxy_sends_cache_hints_of_skills_according_to_the_client_revision(
    proxied: Proxied, skills: Skills, front: Any, back: Any
) -> None:
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


async def test_proxy_offers_no_skills_if_its_backend_has_no_skills(proxied: Proxied, front: Any) -> None:
    for server in (Server("plain"), Server("other", extensions=[Extension("com.example/other")])):
        async with proxied(server) as middle, open_memory(middle, era=front, extensions=[Skills()]) as client:
            with pytest.raises(MethodUnavailable):
                [skill async for skill in client.list_skills()]
            with pytest.raises(PeerError) as caught:
                await client.request("skills/list", {}, dict[str, Any])
            assert caught.value.code == -32601


async def test_proxy_that_declares_the_skills_extension_does_not_forward_other_extensions(
    proxied: Proxied, skills: Skills, front: Any
) -> None:
    """To declare skills is not to declare whatever else a client asks for."""
    other = Extension("com.example/other")
    row = other.method("com.example/other/do", dict[str, Any], dict[str, Any])
    server = Server("s", extensions=[skills])
    async with proxied(server) as middle, open_memory(middle, era=front, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(row.name, {}, dict[str, Any])
        assert caught.value.code == -32601


# Gateways


def described(skills: Skills, era: Any = "modern", **options: Any) -> MemberDescription:
    return MemberDescription(InMemory(Server("s", extensions=[skills], **options)), options={"era": era})


async def listed(client: Client) -> list[str]:
    return [skill.uri async for skill in client.list_skills(refresh=True)]


async def test_gateway_serves_the_skills_of_all_its_servers(skills: Skills, front: Any, back: Any) -> None:
    more = Skills(directory_read=False)
    for name in ("a", "b", "c"):
        more.add_files(name, {"SKILL.md": text_of(name)})
    last = Skills()
    last.add_files("d", {"SKILL.md": text_of("d")})
    members = {
        "one": described(skills, back),
        "plain": MemberDescription(InMemory(Server("plain"))),
        "two": described(more, back, page_size=2),
        "three": described(last, back),
    }
    async with open_group(members) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert (client.server_capabilities.extensions or {})[NAME] == {"directoryRead": True}
            assert await listed(client) == [
                "skill://one/pdf/SKILL.md",
                "skill://two/a/SKILL.md",
                "skill://two/b/SKILL.md",
                "skill://two/c/SKILL.md",
                "skill://three/d/SKILL.md",
            ]
            entry = await client.get_skill("skill://one/pdf/SKILL.md")
            loaded = await client.load_skill(entry)
            assert await loaded.read("references/FORMS.md") == "Forms\r\n"
            assert await loaded.read("logo.png") == b"\x89\xff"
            assert (await client.get_skill("skill://one/acme/refunds/SKILL.md")).name == "refunds"
            children = [(each.uri, each.mime_type) async for each in client.list_directory("skill://one/pdf")]
            assert children[-1] == ("skill://one/pdf/references", "inode/directory")
            assert "skill://one/pdf/SKILL.md" in [each.uri async for each in client.list_resources()]


async def test_gateway_preserves_skill_file_digests_and_sizes(skills: Skills) -> None:
    async with open_group({"one": described(skills)}) as group:
        await group.settled()
        async with open_memory(gateway(group)) as client:
            (merged,) = [skill async for skill in client.list_skills()]
        (own,) = await group.skills()
    (theirs, ours) = (each.files() or {} for each in (own.skill, merged))
    assert {path: (file.digest, file.size) for path, file in ours.items()} == {
        path: (file.digest, file.size) for path, file in theirs.items()
    }


@pytest.mark.parametrize(
    "uri", ["skill://pdf/SKILL.md", "skill://none/pdf/SKILL.md", "skill://one/none/SKILL.md", "x", "skill://one"]
)
async def test_gateway_rejects_skill_uris_that_no_server_knows(skills: Skills, front: Any, uri: str) -> None:
    async with open_group({"one": described(skills)}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            with pytest.raises(PeerError) as caught:
                await client.get_skill(uri)
            assert caught.value.code == -32602
            with pytest.raises(PeerError) as caught:
                [each async for each in client.list_directory(uri)]
            assert caught.value.code == -32602


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "W10=", "WyJub25lIixudWxsXQ==", "WyJvbmUiLCJ4Il0=", "MQ==", "bnVsbA==", "WzEsbnVsbF0=", "WyJvbmUiLDFd"],
)
async def test_gateway_rejects_invalid_cursors_for_skills(skills: Skills, front: Any, cursor: str) -> None:
    async with open_group({"one": described(skills)}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front, extensions=[Skills()]) as client:
            with pytest.raises(PeerError) as caught:
                await client.request("skills/list", {"cursor": cursor}, dict[str, Any])
            assert caught.value.code == -32602


async def test_gateway_declares_the_skills_extension_if_one_of_its_servers_has_skills(
    skills: Skills, front: Any
) -> None:
    async with open_group({"plain": MemberDescription(InMemory(Server("plain")))}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert NAME not in (client.server_capabilities.extensions or {})
        group.add("one", described(skills))
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert await listed(client) == ["skill://one/pdf/SKILL.md"]


async def test_gateway_skips_a_server_whose_skill_listing_fails(skills: Skills, front: Any) -> None:
    members = {"broken": broken(), "one": described(skills)}
    async with open_group(members) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert await listed(client) == ["skill://one/pdf/SKILL.md"]


async def test_gateway_skips_a_server_that_lists_skills_too_slowly(
    skills: Skills, front: Any, autojump_clock: MockClock
) -> None:
    members = {"slow": slow(), "one": described(skills)}
    async with open_group(members) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front) as client:
            assert await listed(client) == ["skill://one/pdf/SKILL.md"]
            assert trio.current_time() == pytest.approx(3, abs=0.1)
            with pytest.raises(PeerError, match="'slow', a server behind this gateway, did not answer in time"):
                await client.get_skill("skill://slow/pdf/SKILL.md")


async def test_skill_update_notification_of_a_gateway_contains_the_uri_that_the_gateway_lists(
    tmp_path: Path, front: Any
) -> None:
    folder = tmp_path / "pdf"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text_of("pdf"))
    skills = Skills(folder, recheck=float("inf"))
    told, came = list[str](), trio.Event()

    def note(uri: str) -> None:
        told.append(uri)
        if (folder / "new").exists():
            came.set()

    async with open_group({"one": described(skills)}) as group:
        await group.settled()
        async with open_memory(gateway(group), era=front, on_resource_updated=note) as client:
            await client.subscribe("skill://one/pdf/SKILL.md")
            with trio.fail_after(20):
                while not came.is_set():
                    (folder / "new").write_text("x" * len(told))
                    await skills.refresh()
                    (folder / "new").unlink()
                    await skills.refresh()
                    (folder / "new").write_text("y")
                    await skills.refresh()
                    with trio.move_on_after(0.1):
                        await came.wait()
    assert set(told) == {"skill://one/pdf/SKILL.md"}
