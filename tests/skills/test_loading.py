"""A client verifies each skill file against its entry, and reads files only when needed."""

from __future__ import annotations

import base64
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Literal

import attrs
import pytest

from trio_mcp import (
    CacheHints,
    Client,
    MethodUnavailable,
    ProtocolViolation,
    ResponseCache,
    Server,
    SkillChanged,
    Skills,
    open_memory,
)
from trio_mcp.protocol.types.offers import PageParams
from trio_mcp.protocol.types.skills import GetSkillParams, GetSkillResult, ListSkillsResult
from trio_mcp.skills.loading import SkillsExtension
from trio_mcp.types import (
    BlobResourceContents,
    Extension,
    LoadedSkill,
    ReadResourceResult,
    Skill,
    SkillFile,
    TextResourceContents,
)

Era = Literal["modern", "legacy"]

URI, FORMS = "skill://pdf/SKILL.md", "skill://pdf/references/FORMS.md"
TEXT = "---\nname: pdf\ndescription: PDF\nmetadata: {a: 1, b: [true, 1.0], c: [x]}\n---\nRead references/FORMS.md\n"


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


def file(uri: str, data: bytes) -> dict[str, Any]:
    return {"uri": uri, "digest": f"sha256:{sha256(data).hexdigest()}", "size": len(data)}


META: dict[str, Any] = {"c": ["x"], "b": [True, 1], "a": 1}
ENTRY: dict[str, Any] = {
    "uri": URI,
    "frontmatter": {"name": "pdf", "description": "PDF", "metadata": META},
    "resources": [file(URI, TEXT.encode()), file(FORMS, b"Forms"), file("skill://pdf/a%20b.bin", b"\xff\x00")],
}


class Liar:
    """A server whose entries and files are what a test says, and which notes what is read."""

    def __init__(self, entry: dict[str, Any] | None = None, **files: Any) -> None:
        self.entry = {**ENTRY, **(entry or {})}
        blob = base64.b64encode(b"\xff\x00").decode()
        self.files: dict[str, Any] = {"SKILL": TEXT, "FORMS": "Forms", "blob": blob, **files}
        self.read: list[str] = []
        extension: Any = SkillsExtension(directory_read=False)
        server = self.server = Server("liar", extensions=[extension])
        server.handles(extension._listing)(self._list)
        server.handles(extension._getting)(self._get)
        server.resource("skill://{+path}")(self._read)

    async def _list(self, _: PageParams) -> ListSkillsResult:
        return ListSkillsResult([self._skill])

    async def _get(self, _: GetSkillParams) -> GetSkillResult:
        return GetSkillResult(self._skill)

    @property
    def _skill(self) -> Skill:
        return Skill(self.entry["uri"], self.entry["frontmatter"], self.entry["resources"])

    async def _read(self, path: str) -> Any:
        self.read.append(path)
        uri = f"skill://{path}"
        if path.endswith(".bin"):
            return BlobResourceContents(uri, self.files["blob"])
        found = self.files["SKILL" if path.endswith("SKILL.md") else "FORMS"]
        return found if isinstance(found, ReadResourceResult) else TextResourceContents(uri, found)

    def opened(self, era: Era = "modern", **options: Any) -> AbstractAsyncContextManager[Client]:
        return open_memory(self.server, era=era, **options)


async def load(client: Client) -> LoadedSkill:
    (skill,) = [skill async for skill in client.list_skills()]
    return await client.load_skill(skill)


async def test_client_requests_each_skill_file_only_when_the_application_reads_it(era: Era) -> None:
    liar = Liar()
    async with liar.opened(era) as client:
        (skill,) = [skill async for skill in client.list_skills()]
        assert await client.get_skill(URI) == skill
        assert liar.read == []
        loaded = await client.load_skill(skill)
        assert (loaded.text, loaded.entry, liar.read) == (TEXT, skill, ["pdf/SKILL.md"])
        assert await loaded.read("references/FORMS.md") == "Forms"
        assert await loaded.read("./references/../references/FORMS.md") == "Forms"
        assert await loaded.read("a b.bin") == b"\xff\x00"
        assert await loaded.read("SKILL.md") == TEXT


@pytest.mark.parametrize("other", [TEXT.replace("Read", "Run!"), TEXT + "more", TEXT.replace("Read", "Rea")])
async def test_loaded_skill_file_that_differs_from_the_listed_digest_raises_skill_changed(era: Era, other: str) -> None:
    async with Liar(SKILL=other).opened(era) as client:
        with pytest.raises(SkillChanged):
            await load(client)


@pytest.mark.parametrize("other", ["Farms", "Forms ", "", "Forms\n"])
async def test_changed_file_of_a_loaded_skill_raises_skill_changed(era: Era, other: str) -> None:
    async with Liar(FORMS=other).opened(era) as client:
        loaded = await load(client)
        with pytest.raises(SkillChanged, match=r"digest|bytes"):
            await loaded.read("references/FORMS.md")


@pytest.mark.parametrize(
    "changed",
    [
        {"description": "Other"},
        {"license": "MIT"},
        {"metadata": {**META, "b": [1, 1]}},
        {"metadata": {**META, "a": True}},
        {"metadata": {**META, "b": [True]}},
        {"metadata": {"a": 1, "b": [True, 1]}},
        {"metadata": {**META, "d": None}},
        {"metadata": {**META, "a": "1"}},
        {"metadata": {**META, "c": "x"}},
        {"metadata": None},
    ],
)
async def test_loaded_front_matter_that_differs_from_the_skill_list_raises_skill_changed(
    era: Era, changed: dict[str, Any]
) -> None:
    entry = {"frontmatter": {**ENTRY["frontmatter"], **changed}}
    async with Liar(entry).opened(era) as client:
        with pytest.raises(SkillChanged, match="in the front matter differs from the server's listing"):
            await load(client)


async def test_loaded_front_matter_field_that_the_skill_list_lacks_raises_skill_changed() -> None:
    entry = {"frontmatter": {"name": "pdf", "description": "PDF"}}
    async with Liar(entry).opened() as client:
        with pytest.raises(SkillChanged, match="'metadata'"):
            await load(client)


@pytest.mark.parametrize("text", ["no front matter", "---\nname: &a pdf\nb: *a\n---\n"])
async def test_invalid_front_matter_in_a_loaded_skill_raises_skill_changed(text: str) -> None:
    entry = {"resources": [file(URI, text.encode())]}
    async with Liar(entry, SKILL=text).opened() as client:
        with pytest.raises(SkillChanged, match="front matter"):
            await load(client)


@pytest.mark.parametrize(
    "path", ["../other/SKILL.md", "/etc/passwd", "references/../../x", "a\\b", "", ".", "..", "a\x00"]
)
async def test_reading_a_path_that_leaves_the_skill_sends_no_request(era: Era, path: str) -> None:
    liar = Liar()
    async with liar.opened(era) as client:
        loaded = await load(client)
        with pytest.raises(ValueError, match="is not a path in a skill"):
            await loaded.read(path)
    assert liar.read == ["pdf/SKILL.md"]


async def test_reading_a_file_that_the_skill_does_not_list_sends_no_request(era: Era) -> None:
    liar = Liar()
    async with liar.opened(era) as client:
        loaded = await load(client)
        with pytest.raises(SkillChanged, match="lists no file 'references/MORE"):
            await loaded.read("references/MORE.md")
    assert liar.read == ["pdf/SKILL.md"]


async def test_files_of_a_skill_that_lists_no_digests_can_be_read() -> None:
    liar = Liar({"resources": "dynamic"}, FORMS="anything")
    async with liar.opened() as client:
        loaded = await load(client)
        assert await loaded.read("references/FORMS.md") == "anything"
        assert await loaded.read("a b.bin") == b"\xff\x00"
        with pytest.raises(ValueError, match="is not a path in a skill"):
            await loaded.read("../x")
    liar = Liar({"resources": "dynamic", "frontmatter": {"name": "pdf"}})
    async with liar.opened() as client:
        with pytest.raises(SkillChanged, match="front matter"):
            await load(client)


GOOD = ENTRY["resources"]


@pytest.mark.parametrize(
    "resources",
    [
        None,
        "static",
        {},
        [],
        GOOD[1:],
        [*GOOD, GOOD[1]],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/references%2FFORMS.md"}],
        [*GOOD, {**GOOD[1], "uri": "skill://other/x"}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/../other/x"}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/%2e%2e/other/x"}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/x", "size": -1}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/x", "size": True}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/x", "size": 2**24}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/x", "digest": "sha256:00"}],
        [*GOOD, {**GOOD[1], "uri": "skill://pdf/x", "digest": GOOD[1]["digest"].upper()}],
        [*GOOD, {"uri": "skill://pdf/x"}],
        [*GOOD, 3],
        [*GOOD, *({**GOOD[1], "uri": f"skill://pdf/{number}"} for number in range(510))],
    ],
)
async def test_malformed_list_of_skill_files_raises_protocol_violation(resources: Any) -> None:
    liar = Liar({"resources": resources})
    async with liar.opened() as client:
        with pytest.raises(ProtocolViolation, match="is invalid"):
            await load(client)
    assert liar.read == []


@pytest.mark.parametrize("uri", ["skill://pdf/skill.md", "SKILL.md", "pdf/SKILL.md"])
async def test_listed_skill_whose_uri_does_not_end_with_the_skill_file_name_raises_protocol_violation(uri: str) -> None:
    async with Liar({"uri": uri}).opened() as client:
        with pytest.raises(ProtocolViolation, match="invalid URI of a skill"):
            await load(client)


async def test_skill_uri_can_have_a_scheme_other_than_skill() -> None:
    skill = Skill("git://acme/pdf/SKILL.md", {}, [SkillFile("git://acme/pdf/SKILL.md", GOOD[0]["digest"], 1)])
    assert list(skill.files() or {}) == ["SKILL.md"]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([], "must have one item of contents, not 0"),
        ([TextResourceContents(URI, TEXT)] * 2, "must have one item of contents, not 2"),
        ([BlobResourceContents(URI, "no base64!")], "must be valid base64"),
        ([BlobResourceContents(URI, base64.b64encode(TEXT.encode()).decode())], "must be text, not binary data"),
        ([TextResourceContents(URI, TEXT)], ""),
        ([TextResourceContents("skill://other/SKILL.md", TEXT)], ""),
    ],
)
async def test_loading_a_skill_file_without_exactly_one_content_part_raises_skill_changed(
    contents: list[Any], words: str
) -> None:
    async with Liar(SKILL=ReadResourceResult(contents)).opened() as client:
        if words:
            with pytest.raises(SkillChanged, match=words):
                await load(client)
        else:
            assert (await load(client)).text == TEXT


@pytest.mark.parametrize("size", [4, 6])
async def test_wrong_file_size_raises_skill_changed_despite_a_correct_digest(size: int) -> None:
    async with Liar({"resources": [GOOD[0], {**GOOD[1], "size": size}]}).opened() as client:
        loaded = await load(client)
        with pytest.raises(SkillChanged, match=f"has 5 bytes, but the server's listing says {size}"):
            await loaded.read("references/FORMS.md")


async def test_large_skill_file_is_compared_with_its_digest() -> None:
    text = "x" * 200_000
    entry = {"resources": [GOOD[0], file(FORMS, text.encode())]}
    for given, words in ((text, None), ("y" * 200_000, "digest")):
        async with Liar(entry, FORMS=given).opened() as client:
            loaded = await load(client)
            if words is None:
                assert await loaded.read("references/FORMS.md") == text
            else:
                with pytest.raises(SkillChanged, match=words):
                    await loaded.read("references/FORMS.md")


async def test_server_without_skills_raises_method_unavailable_without_a_request(era: Era) -> None:
    for server in (Server("plain"), Server("other", extensions=[Extension("com.example/other")])):
        async with open_memory(server, era=era) as client:
            with pytest.raises(MethodUnavailable, match=r"has not declared io\.modelcontextprotocol/skills"):
                [skill async for skill in client.list_skills()]
            with pytest.raises(MethodUnavailable):
                await client.get_skill(URI)
            with pytest.raises(MethodUnavailable):
                [each async for each in client.list_directory("skill://pdf")]


async def test_client_can_declare_the_skills_extension(era: Era) -> None:
    """The methods are the same for a client that declares it, and for one that does not."""
    for options in ({}, {"extensions": [Skills()]}):
        async with Liar().opened(era, **options) as client:
            assert (await load(client)).text == TEXT
            assert client.server_extension(Skills()) == {}


async def test_listed_skill_is_cached_until_the_application_requests_a_refresh() -> None:
    skills = Skills()
    skills.add_files("pdf", {"SKILL.md": TEXT})
    server = Server("s", extensions=[skills], cache=CacheHints(60_000, "public"))
    async with open_memory(server, cache=ResponseCache().partition()) as client:
        first = await client.get_skill(URI)
        skills.remove("pdf")
        skills.add_files("pdf", {"SKILL.md": TEXT, "more": "x"})
        assert await client.get_skill(URI, refresh=True) != first


async def test_cached_skill_file_that_differs_from_the_listed_digest_is_read_again() -> None:
    skills = Skills()
    skills.add_files("pdf", {"SKILL.md": TEXT, "more": "More"})
    server = Server("s", extensions=[skills], cache=CacheHints(60_000, "public"))
    async with open_memory(server, cache=ResponseCache().partition()) as client:
        loaded = await client.load_skill(await client.get_skill(URI))
        assert await loaded.read("more") == "More"
        skills.remove("pdf")
        assert await loaded.read("more") == "More", "it was kept, and is what the entry says"
        skills.add_files("pdf", {"SKILL.md": TEXT + "Other", "more": "Less"})
        again = await client.load_skill(await client.get_skill(URI, refresh=True))
        assert (again.text, await again.read("more")) == (TEXT + "Other", "Less")
        with pytest.raises(SkillChanged):
            await loaded.read("more")


async def test_changed_skill_can_be_loaded_after_it_is_listed_again() -> None:
    liar = Liar()
    async with liar.opened() as client:
        loaded = await load(client)
        liar.files["FORMS"] = "Other"
        with pytest.raises(SkillChanged):
            await loaded.read("references/FORMS.md")
        liar.entry = {**ENTRY, "resources": [GOOD[0], file(FORMS, b"Other")]}
        again = await client.load_skill(await client.get_skill(URI, refresh=True))
        assert await again.read("references/FORMS.md") == "Other"
        assert attrs.asdict(again.entry) != attrs.asdict(loaded.entry)
