"""Reading a folder as a skill: invalid files are named, and nothing outside the folder is read."""

from __future__ import annotations

import os
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from trio_mcp.protocol.types.skills import MOST_FILES
from trio_mcp.skills.folder import read_files, read_folder, skill_folders, stamps_of

TEXT = "---\nname: refunds\ndescription: Process refunds\nlicense: MIT\n---\nRead references/FORMS.md.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "refunds"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(TEXT)
    (folder / "references" / "FORMS.md").write_bytes(b"\xef\xbb\xbfForms\r\n")
    (folder / ".hidden").write_text("")
    return folder


def test_each_skill_file_is_listed_with_digest_and_size(folder: Path) -> None:
    skill = read_folder(folder, "acme/billing")
    assert skill.entry.uri == "skill://acme/billing/refunds/SKILL.md"
    assert skill.entry.frontmatter == {"name": "refunds", "description": "Process refunds", "license": "MIT"}
    forms = b"\xef\xbb\xbfForms\r\n"
    assert [(file.uri, file.digest, file.size) for file in skill.entry.resources] == [
        (f"skill://acme/billing/refunds/{path}", f"sha256:{sha256(data).hexdigest()}", len(data))
        for path, data in (("SKILL.md", TEXT.encode()), (".hidden", b""), ("references/FORMS.md", forms))
    ]
    assert skill.contents_of("references/FORMS.md") == forms


def test_skill_file_names_are_percent_encoded_in_uris(folder: Path) -> None:
    (folder / "50% off?#é.md").write_text("x")
    assert read_folder(folder).files["50% off?#é.md"].uri == "skill://refunds/50%25%20off%3F%23%C3%A9.md"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Refunds", "is not a valid skill name"),
        ("-refunds", "is not a valid skill name"),
        ("re--funds", "is not a valid skill name"),
        ("a" * 65, "is not a valid skill name"),
        ("other", "the name must be equal to the name of the skill's folder, not 'refunds'"),
    ],
)
def test_skill_name_must_equal_the_name_of_the_skill_folder(folder: Path, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_folder(folder.rename(folder.parent / name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no front matter", r"refunds/SKILL\.md: the file must begin with front matter"),
        ("---\nname: refunds\n---\n", "the description must be text"),
        ("---\nname: refunds\ndescription: ' '\n---\n", "the description must be text"),
        ("---\nname: refunds\ndescription: [a]\n---\n", "the description must be text"),
        (f"---\nname: refunds\ndescription: {'x' * 1025}\n---\n", "1 to 1024 characters"),
        ("---\nname: [refunds]\ndescription: a\n---\n", "the name must be equal to the name of the skill's folder"),
    ],
)
def test_invalid_skill_front_matter_raises_value_error(folder: Path, text: str, words: str) -> None:
    (folder / "SKILL.md").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_folder(folder)


def test_longest_allowed_skill_name_and_description_are_accepted(folder: Path) -> None:
    folder = folder.rename(folder.parent / ("a" * 64))
    (folder / "SKILL.md").write_text(f"---\nname: {'a' * 64}\ndescription: {'x' * 1024}\n---\n")
    assert len(read_folder(folder).entry.description) == 1024


def test_skill_file_that_is_not_utf8_raises_value_error(folder: Path) -> None:
    (folder / "SKILL.md").write_bytes(b"---\nname: refunds\ndescription: \xff\n---\n")
    with pytest.raises(ValueError, match=r"refunds/SKILL\.md"):
        read_folder(folder)


def test_missing_skill_file_raises_value_error(folder: Path) -> None:
    (folder / "SKILL.md").rename(folder / "skill.md")
    with pytest.raises(ValueError, match=r"SKILL\.md is missing"):
        read_folder(folder)


@pytest.mark.parametrize("target", ["secret", "refunds/.hidden", "."])
@pytest.mark.parametrize("where", ["link", "references/link", "SKILL.md"])
def test_symlinks_in_a_skill_folder_are_refused(folder: Path, target: str, where: str) -> None:
    (folder.parent / "secret").write_text(TEXT)
    (folder / where).unlink(missing_ok=True)
    (folder / where).symlink_to(folder.parent / target)
    with pytest.raises(ValueError, match="a skill must not contain symbolic links"):
        read_folder(folder)


def test_fifo_in_a_skill_folder_is_refused_without_blocking(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ValueError, match="pipe: a skill file must be a regular file"):
        read_folder(folder)


@pytest.mark.parametrize("name", [b"new\nline", b"back\\slash", b"\xff\xfe"])
def test_invalid_skill_file_names_are_refused(folder: Path, name: bytes) -> None:
    os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    with pytest.raises(ValueError, match="is not a valid name for a skill file"):
        read_folder(folder)


def test_skill_with_more_than_512_files_is_refused(folder: Path) -> None:
    for number in range(MOST_FILES - 3):
        (folder / f"{number}.md").touch()
    assert len(read_folder(folder).files) == MOST_FILES
    (folder / "one more").touch()
    with pytest.raises(ValueError, match="at most 512 files"):
        read_folder(folder)


def test_size_limit_of_a_skill_applies_to_all_files_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    monkeypatch.setattr("trio_mcp.skills.folder.MOST_BYTES", size)
    read_folder(folder)
    (folder / ".hidden").write_text("x")
    with pytest.raises(ValueError, match="at most"):
        read_folder(folder)


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/../b", "", "a\\b", "a\x00"])
def test_skill_file_paths_must_stay_inside_the_skill(path: str) -> None:
    with pytest.raises(ValueError, match="is not a valid path for a skill file"):
        read_files("refunds", {"SKILL.md": TEXT.encode(), path: b""})


@pytest.mark.parametrize("prefix", ["/acme", "acme/", "a b", "..", "acme//x", "é"])
def test_skill_uri_prefix_that_is_not_a_valid_path_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="is not a valid prefix for skills"):
        read_files("refunds", {"SKILL.md": TEXT.encode()}, prefix)


def test_skill_file_replaced_by_a_symlink_is_not_read(folder: Path) -> None:
    skill = read_folder(folder)
    (folder.parent / "secret").write_bytes((folder / "references" / "FORMS.md").read_bytes())
    (folder / "references" / "FORMS.md").unlink()
    (folder / "references" / "FORMS.md").symlink_to(folder.parent / "secret")
    assert skill.contents_of("references/FORMS.md") is None


def test_skill_subfolder_replaced_by_a_symlink_is_not_read(folder: Path) -> None:
    skill = read_folder(folder)
    (folder / "references").rename(folder.parent / "elsewhere")
    (folder / "references").symlink_to(folder.parent / "elsewhere")
    assert skill.contents_of("references/FORMS.md") is None


def test_skill_file_changed_after_hashing_is_not_returned(folder: Path) -> None:
    skill = read_folder(folder)
    (folder / "references" / "FORMS.md").write_bytes(b"\xef\xbb\xbfOther\r\n")
    assert skill.contents_of("references/FORMS.md") is None
    (folder / "references" / "FORMS.md").unlink()
    assert skill.contents_of("references/FORMS.md") is None


def test_each_modification_of_a_skill_folder_is_detected_by_file_times(folder: Path) -> None:
    seen = [read_folder(folder).stamps]
    (folder / ".hidden").write_text("x")
    seen.append(stamps_of(folder))
    (folder / "new").touch()
    seen.append(stamps_of(folder))
    (folder / "new").rename(folder / "newer")
    seen.append(stamps_of(folder))
    assert [one == other for one, other in pairwise(seen)] == [False] * 3
    assert stamps_of(folder) == seen[-1]


def test_skill_folders_are_found_at_any_depth_and_inside_other_skills(folder: Path) -> None:
    inner = folder / "nested" / "inner"
    inner.mkdir(parents=True)
    (inner / "SKILL.md").touch()
    found = skill_folders(folder.parent)
    assert found == [(folder, ""), (inner, "refunds/nested")]
