"""Skills of a server: what clients list, get and read, what of it changes, and who may see it (SEP-2640)."""

from __future__ import annotations

import base64
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import modern
from tests.serving.http.scenes import in_memory
from trio.testing import MockClock

from trio_mcp import CacheHints, Client, MethodUnavailable, PeerError, ResponseCache, Server, Skills, open_memory
from trio_mcp.auth import Auth
from trio_mcp.types import BlobResourceContents, Skill, TextResourceContents

Era = Literal["modern", "legacy"]

NAME = "io.modelcontextprotocol/skills"
PDF = "skill://pdf/SKILL.md"
IMAGE = b"\x89PNG\r\n\x1a\n"


def text_of(name: str, description: str = "What it is for", more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\nBody of {name}.\n"


FILES: dict[str, str | bytes] = {
    "SKILL.md": text_of("pdf", more="license: MIT\n"),
    "references/FORMS.md": "\ufeffForms\r\n",
    "templates/regional/invoice.md": "An invoice",
    "logo.png": IMAGE,
}


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
def skills() -> Skills:
    skills = Skills()
    skills.add_files("pdf", FILES)
    skills.add_files("refunds", {"SKILL.md": text_of("refunds")}, prefix="acme/billing")
    return skills


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two skills."""
    for path, data in FILES.items():
        file = tmp_path / "pdf" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
    (tmp_path / "acme" / "refunds").mkdir(parents=True)
    (tmp_path / "acme" / "refunds" / "SKILL.md").write_text(text_of("refunds"))
    return tmp_path


async def listed(client: Client) -> list[str]:
    return [skill.uri async for skill in client.list_skills(refresh=True)]


async def contents(client: Client, uri: str) -> Any:
    (part,) = (await client.read_resource(uri)).contents
    return part


async def refusal(client: Client, method: str, uri: str) -> tuple[int, str]:
    with pytest.raises(PeerError) as caught:
        await client.request(method, {"uri": uri}, dict[str, Any])
    return caught.value.code, caught.value.message


async def test_server_with_skills_declares_the_skills_extension_and_resources(era: Era) -> None:
    for skills, settings in ((Skills(), {"directoryRead": True}), (Skills(directory_read=False), {})):
        async with open_memory(Server("s", extensions=[skills]), era=era) as client:
            assert (client.server_capabilities.extensions or {})[NAME] == settings
            assert client.server_capabilities.resources is not None
            assert await listed(client) == []


async def test_skill_entry_has_the_front_matter_and_all_files(skills: Skills, era: Era) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        first, second = [skill async for skill in client.list_skills()]
        assert await client.get_skill(PDF) == first
    assert first.uri == PDF
    assert second.uri == "skill://acme/billing/refunds/SKILL.md"
    assert first.frontmatter == {"name": "pdf", "description": "What it is for", "license": "MIT"}
    raw = {path: data if isinstance(data, bytes) else data.encode() for path, data in FILES.items()}
    files = first.files()
    assert files is not None
    assert {path: (file.digest, file.size) for path, file in files.items()} == {
        path: (f"sha256:{sha256(data).hexdigest()}", len(data)) for path, data in raw.items()
    }


async def test_skill_files_are_read_as_resources_with_the_same_bytes(skills: Skills, era: Era) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        text = await contents(client, "skill://pdf/references/FORMS.md")
        assert text == TextResourceContents("skill://pdf/references/FORMS.md", "\ufeffForms\r\n", "text/markdown")
        image = await contents(client, "skill://pdf/logo.png")
        assert image == BlobResourceContents("skill://pdf/logo.png", base64.b64encode(IMAGE).decode(), "image/png")
        assert (await contents(client, PDF)).text == FILES["SKILL.md"]


async def test_only_skill_md_files_are_in_the_resource_list(skills: Skills, era: Era) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        found = [resource async for resource in client.list_resources()]
        assert [template async for template in client.list_resource_templates()] == []
    assert [(each.uri, each.name, each.description, each.mime_type) for each in found] == [
        (PDF, "pdf", "What it is for", "text/markdown"),
        ("skill://acme/billing/refunds/SKILL.md", "refunds", "What it is for", "text/markdown"),
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf",
        "skill://pdf/",
        "skill://pdf/none.md",
        "skill://pdf/../pdf/SKILL.md",
        "skill://pdf/%2e%2e/pdf/SKILL.md",
        "skill://pdf//SKILL.md",
        "skill:///pdf/SKILL.md",
        "skill://",
        "skill://acme/billing",
        "file:///etc/passwd",
    ],
)
async def test_uri_that_is_not_a_skill_file_gets_error_resource_not_found(skills: Skills, era: Era, uri: str) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        code = (await refusal(client, "resources/read", uri))[0]
    assert code == (-32602 if era == "modern" else -32002)


@pytest.mark.parametrize("uri", ["skill://none/SKILL.md", "skill://pdf", "skill://pdf/logo.png", "", "x" * 9000])
async def test_unknown_skill_uri_causes_an_error(skills: Skills, era: Era, uri: str) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era, extensions=[Skills()]) as client:
        code, message = await refusal(client, "skills/get", uri)
    assert code == -32602
    assert message.startswith("This server has no skill at ")
    assert len(message) < 1100


async def test_listing_a_skill_directory_returns_its_direct_children(skills: Skills, era: Era) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        root = [(each.uri, each.name, each.mime_type) async for each in client.list_directory("skill://pdf")]
        deeper = [(each.uri, each.mime_type) async for each in client.list_directory("skill://pdf/templates")]
    assert root == [
        (PDF, "pdf", "text/markdown"),
        ("skill://pdf/logo.png", "logo.png", "image/png"),
        ("skill://pdf/references", "references", "inode/directory"),
        ("skill://pdf/templates", "templates", "inode/directory"),
    ]
    assert deeper == [("skill://pdf/templates/regional", "inode/directory")]


@pytest.mark.parametrize("uri", [PDF, "skill://pdf/", "skill://pdf/none", "skill://acme", "skill://"])
async def test_listing_a_uri_that_is_not_a_skill_directory_causes_an_error(skills: Skills, era: Era, uri: str) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        with pytest.raises(PeerError) as caught:
            [each async for each in client.list_directory(uri)]
    assert caught.value.code == -32602


async def test_client_does_not_list_skill_directories_if_the_server_declares_no_directories(era: Era) -> None:
    skills = Skills(directory_read=False)
    skills.add_files("pdf", FILES)
    async with open_memory(Server("s", extensions=[skills]), era=era, extensions=[Skills()]) as client:
        with pytest.raises(MethodUnavailable, match="directoryRead"):
            [each async for each in client.list_directory("skill://pdf")]
        assert (await refusal(client, "resources/directory/read", "skill://pdf"))[0] == -32601


async def test_unlisted_skill_is_readable_by_its_uri_but_does_not_appear_in_lists(era: Era) -> None:
    skills = Skills()
    skills.add_files("secret", {"SKILL.md": text_of("secret"), "more.md": "More"}, listed=False)
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        assert await listed(client) == []
        assert [resource async for resource in client.list_resources()] == []
        skill = await client.get_skill("skill://secret/SKILL.md")
        assert await (await client.load_skill(skill)).read("more.md") == "More"


async def test_skills_list_is_paginated(era: Era) -> None:
    skills = Skills()
    for number in range(5):
        skills.add_files(f"s{number}", {"SKILL.md": text_of(f"s{number}")})
    async with open_memory(Server("s", extensions=[skills], page_size=2), era=era) as client:
        assert await listed(client) == [f"skill://s{number}/SKILL.md" for number in range(5)]
        page = await client.request("skills/list", {}, dict[str, Any])
        assert len(page["skills"]) == 2
        with pytest.raises(PeerError, match="cursor"):
            await client.request("skills/list", {"cursor": "2"}, dict[str, Any])


async def test_skills_results_have_the_cache_hints_of_the_server_in_modern_revisions(skills: Skills) -> None:
    server = Server("s", extensions=[skills], cache=CacheHints(300_000, "public"))
    for era, hints in (("modern", (300_000, "public")), ("legacy", (None, None))):
        async with open_memory(server, era=era, extensions=[Skills()]) as client:  # pyright: ignore[reportArgumentType]
            for method, params in (("skills/list", {}), ("skills/get", {"uri": PDF})):
                result = await client.request(method, params, dict[str, Any])
                assert (result.get("ttlMs"), result.get("cacheScope")) == hints
            folder = await client.request("resources/directory/read", {"uri": "skill://pdf"}, dict[str, Any])
            assert "ttlMs" not in folder


async def test_nested_skill_is_listed_and_its_files_belong_to_the_outer_skill_too(era: Era, folder: Path) -> None:
    (folder / "pdf" / "forms").mkdir()
    (folder / "pdf" / "forms" / "SKILL.md").write_text(text_of("forms"))
    async with open_memory(Server("s", extensions=[Skills(folder)]), era=era) as client:
        outer, inner = await client.get_skill(PDF), await client.get_skill("skill://pdf/forms/SKILL.md")
    assert inner.name == "forms"
    assert "forms/SKILL.md" in (outer.files() or {})


# Changes


async def test_skill_change_is_readable_before_clients_are_notified(folder: Path, era: Era) -> None:
    """Nobody is ever given a file that its entry does not tell of."""
    skills = Skills(folder, recheck=0)
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        before = await client.get_skill(PDF)
        (folder / "pdf" / "references" / "FORMS.md").write_text("Other forms")
        assert (await contents(client, "skill://pdf/references/FORMS.md")).text == "Other forms"
        after = await client.get_skill(PDF, refresh=True)
        assert before != after
        assert (after.files() or {})["references/FORMS.md"].size == len("Other forms")
        assert after == [skill async for skill in client.list_skills(refresh=True)][-1]


async def test_skills_are_added_and_removed_with_their_directories(folder: Path, era: Era) -> None:
    async with open_memory(Server("s", extensions=[Skills(folder, recheck=0)]), era=era) as client:
        assert await listed(client) == ["skill://acme/refunds/SKILL.md", PDF]
        (folder / "acme" / "refunds" / "SKILL.md").unlink()
        (folder / "new").mkdir()
        (folder / "new" / "SKILL.md").write_text(text_of("new"))
        assert await listed(client) == [PDF, "skill://new/SKILL.md"]
        assert [each.uri async for each in client.list_resources()] == [PDF, "skill://new/SKILL.md"]
        assert (await refusal(client, "skills/get", "skill://acme/refunds/SKILL.md"))[0] == -32602


async def test_skill_directories_are_checked_at_the_recheck_interval(folder: Path, autojump_clock: Any) -> None:
    async with open_memory(Server("s", extensions=[Skills(folder, recheck=10)])) as client:
        assert len(await listed(client)) == 2
        (folder / "pdf" / "SKILL.md").unlink()
        await trio.sleep(9)
        assert len(await listed(client)) == 2
        await trio.sleep(2)
        assert len(await listed(client)) == 1


def test_skill_directories_are_checked_after_the_clock_was_set_back(folder: Path) -> None:
    skills = Skills(folder, recheck=10)

    async def count() -> int:
        async with open_memory(Server("s", extensions=[skills])) as client:
            return len(await listed(client))

    async def later() -> int:
        await trio.sleep(1000)
        return await count()

    assert trio.run(later, clock=MockClock(autojump_threshold=0)) == 2
    (folder / "pdf" / "SKILL.md").unlink()
    assert trio.run(count, clock=MockClock()) == 1  # whose time begins anew


async def test_clients_are_notified_when_a_skill_and_its_file_change(folder: Path, era: Era) -> None:
    skills, news = Skills(folder, recheck=float("inf")), list[str]()
    changed = "skill://pdf/references/FORMS.md"

    def note(uri: str) -> None:
        news.append(uri)
        came.unpark_all()

    came = trio.lowlevel.ParkingLot()
    async with open_memory(Server("s", extensions=[skills]), era=era, on_resource_updated=note) as client:
        for uri in (PDF, changed, "skill://pdf/logo.png"):
            await client.subscribe(uri)
        news.clear()
        (folder / "pdf" / "references" / "FORMS.md").write_text("Other forms")
        await skills.refresh()
        with trio.fail_after(PATIENCE):
            while len(news) < 2:
                await came.park()
        await client.ping()
    assert sorted(news) == sorted([PDF, changed])


async def test_clients_are_notified_of_a_changed_skill_description(folder: Path) -> None:
    skills = Skills(folder, recheck=float("inf"))
    async with open_memory(Server("s", extensions=[skills])) as client, client.listen(resources=True) as changes:
        (folder / "pdf" / "SKILL.md").write_text(text_of("pdf", "Something else"))
        await skills.refresh()
        with trio.fail_after(PATIENCE):
            assert (await anext(changes)).kind == "resources"
        described = {each.uri: each.description async for each in client.list_resources()}
    assert described[PDF] == "Something else"


async def test_skill_that_becomes_invalid_is_unlisted_until_it_is_valid_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skills = Skills(folder, recheck=0)
    async with open_memory(Server("s", extensions=[skills])) as client:
        (folder / "pdf" / "SKILL.md").write_text("half writ")
        for _ in range(3):
            assert await listed(client) == ["skill://acme/refunds/SKILL.md"]
        with pytest.raises(ValueError, match=r"pdf/SKILL\.md: the file must begin with front matter"):
            await skills.refresh()
        (folder / "pdf" / "SKILL.md").write_text(text_of("pdf"))
        assert await listed(client) == ["skill://acme/refunds/SKILL.md", PDF]
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "a skill is not offered: pdf/SKILL.md: the file must begin with front matter: YAML between two lines ---"
    ]


async def test_skills_can_be_added_and_removed_while_a_server_runs(skills: Skills, folder: Path, era: Era) -> None:
    async with open_memory(Server("s", extensions=[skills]), era=era) as client:
        skills.add_folder(folder / "acme" / "refunds", "more")
        skills.remove("pdf")
        assert await listed(client) == ["skill://acme/billing/refunds/SKILL.md", "skill://more/refunds/SKILL.md"]
        skills.remove("more/refunds")
        await skills.refresh()
        assert await listed(client) == ["skill://acme/billing/refunds/SKILL.md"]
    with pytest.raises(KeyError):
        skills.remove("more/refunds")


async def test_client_drops_its_cached_skills_list_after_a_change(folder: Path) -> None:
    skills = Skills(folder, recheck=float("inf"))
    server = Server("s", extensions=[skills], cache=CacheHints(3_600_000, "public"))
    async with (
        open_memory(server, cache=ResponseCache().partition()) as client,
        client.listen(uris=[PDF]) as changes,
    ):
        first = [skill async for skill in client.list_skills()]
        (folder / "pdf" / "logo.png").write_bytes(b"")
        assert [skill async for skill in client.list_skills()] == first
        await skills.refresh()
        with trio.fail_after(PATIENCE):
            await anext(changes)
        assert [skill async for skill in client.list_skills()] != first


# Who may see what


def guarded() -> Server:
    def for_writers(auth: Auth | None) -> bool:
        return auth is not None and "write" in auth.scopes

    skills = Skills()
    skills.add_files("open", {"SKILL.md": text_of("open")})
    skills.add_files("hidden", {"SKILL.md": text_of("hidden"), "x/y": "x"}, visible=for_writers)
    skills.add_files("scoped", {"SKILL.md": text_of("scoped"), "x/y": "x"}, scopes=["write"])
    skills.add_files("unlisted", {"SKILL.md": text_of("unlisted"), "x/y": "x"}, scopes=["write"], listed=False)
    return Server("s", extensions=[skills], cache=CacheHints(60_000, "public"))


async def test_skills_are_listed_and_read_only_by_callers_who_can_see_them() -> None:
    async with in_memory(guarded(), auth=protected(issued())) as endpoint:

        async def ask(token: str, method: str, **params: Any) -> Any:
            headers, body = modern(method, params)
            return await endpoint.ask("POST", {**headers, **bearer(token)}, body)

        for token, shown in (("alice-1", ["open"]), ("alice-2", ["open", "hidden", "scoped"])):
            result = (await ask(token, "skills/list")).json["result"]
            assert [skill["frontmatter"]["name"] for skill in result["skills"]] == shown
            assert result["cacheScope"] == "private"
        for method, path in (
            ("skills/get", "SKILL.md"),
            ("resources/read", "SKILL.md"),
            ("resources/read", "x/y"),
            ("resources/directory/read", "x"),
        ):
            for name in ("scoped", "unlisted"):
                refused = await ask("alice-1", method, uri=f"skill://{name}/{path}")
                assert (refused.status, "insufficient_scope" in refused.headers["www-authenticate"]) == (403, True)
            assert (await ask("alice-1", method, uri=f"skill://hidden/{path}")).code == -32602
            for name in ("hidden", "scoped", "unlisted"):
                answered = await ask("alice-2", method, uri=f"skill://{name}/{path}")
                assert answered.status == 200, answered
                assert answered.json["result"].get("cacheScope", "private") == "private"


async def test_disabled_tag_hides_the_skills_with_the_tag_and_the_files_of_these_skills(era: Era) -> None:
    skills = Skills()
    skills.add_files("beta", {"SKILL.md": text_of("beta"), "more.md": "More"}, tags=["beta"])
    server = Server("s", extensions=[skills])
    async with open_memory(server, era=era) as client:
        assert await listed(client) == ["skill://beta/SKILL.md"]
        server.disable("beta")
        assert await listed(client) == []
        for method, uri in (("skills/get", "skill://beta/SKILL.md"), ("resources/read", "skill://beta/more.md")):
            assert (await refusal(client, method, uri))[0] in (-32602, -32002)
        server.enable("beta")
        assert await listed(client) == ["skill://beta/SKILL.md"]


async def test_skill_files_of_a_mounted_server_are_readable_and_its_skills_unlisted(skills: Skills) -> None:
    server = Server("s")
    server.mount(Server("part", extensions=[skills]), prefix="part")
    async with open_memory(server) as client:
        assert NAME not in (client.server_capabilities.extensions or {})
        assert (await contents(client, PDF)).text == FILES["SKILL.md"]
        assert (await contents(client, "skill://pdf/references/FORMS.md")).text == FILES["references/FORMS.md"]


# What an author may not do


def test_skill_path_added_twice_raises(skills: Skills, folder: Path) -> None:
    with pytest.raises(ValueError, match="there is already a skill 'pdf'"):
        skills.add_files("pdf", FILES)
    with pytest.raises(ValueError, match="there is already a skill 'pdf'"):
        skills.add_folder(folder / "pdf")


def test_skills_object_for_a_directory_without_skills_raises_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder contains a SKILL\.md"):
        Skills(tmp_path)
    with pytest.raises(FileNotFoundError):
        Skills().add_folder(tmp_path / "none")


def test_skills_object_for_a_directory_with_an_invalid_skill_raises_value_error(folder: Path) -> None:
    (folder / "acme" / "refunds" / "SKILL.md").write_text("")
    with pytest.raises(ValueError, match=r"refunds/SKILL\.md"):
        Skills(folder)


def test_skill_name_and_description_are_empty_if_missing_or_not_strings() -> None:
    assert Skill("skill://a/SKILL.md", {"name": 3}, []).name == ""
    assert Skill("skill://a/SKILL.md", {"description": "d"}, []).description == "d"
