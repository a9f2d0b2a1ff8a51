"""Skills: folders with instructions and files for a model, which a server provides as resources (SEP-2640)."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final, cast
from urllib.parse import unquote

from ...classes import value
from ..fields import JSONObject, as_object, since
from .lifecycle import CacheScope
from .offers import Resource

SKILLS_EXTENSION: Final = "io.modelcontextprotocol/skills"
SKILL_FILE: Final = "SKILL.md"
MOST_FILES: Final = 512
"""Maximum number of files of a skill (SEP-2640, Limits)."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of all files of a skill together (SEP-2640, Limits)."""
SKILL_SCHEME: Final = "skill://"
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@value
class SkillFile:
    """A file of a skill, with its URI, its digest and its size."""

    uri: str
    """URI of the file, which is inside the skill's folder."""
    digest: str
    """SHA-256 of the file's bytes: ``sha256:`` followed by 64 hexadecimal digits."""
    size: int
    """Size of the file in bytes."""


@value
class Skill:
    """A skill, as a server lists it, with its front matter and its files.

    It has the URI of its ``SKILL.md``, the front matter of that file as JSON, and its files, or ``"dynamic"`` if the
    server can't list them. Don't trust the contents, which come from the server.
    """

    uri: str
    """URI of the skill's ``SKILL.md``."""
    frontmatter: JSONObject
    """The YAML front matter of ``SKILL.md`` as JSON data."""
    resources: Any
    """The skill's files as JSON data, or ``"dynamic"`` if the server can't list them."""

    @property
    def name(self) -> str:
        """The name of the skill in its front matter.

        Empty if the front matter has no name.
        """
        name = self.frontmatter.get("name")
        return name if isinstance(name, str) else ""

    @property
    def description(self) -> str:
        """The description of the skill in its front matter: what the skill does, and when to use it.

        Empty if there is no description.
        """
        description = self.frontmatter.get("description")
        return description if isinstance(description, str) else ""

    @property
    def root(self) -> str:
        """The URI of the skill's folder, with a slash at the end."""
        return self.uri.removesuffix(SKILL_FILE)

    def files(self) -> dict[str, SkillFile] | None:
        """Return the files of the skill, keyed by their paths relative to the skill's folder.

        Return `None` if the server doesn't list the files. Raises `ValueError` if the list is invalid (SEP-2640,
        Resources).
        """
        if self.resources == "dynamic":
            return None
        # SEP-2640, Resource Mapping: servers SHOULD use the scheme skill://, but clients must treat all schemes alike.
        if "://" not in self.uri or not self.uri.endswith(f"/{SKILL_FILE}"):
            raise ValueError(
                f"invalid URI of a skill {self.uri[:200]!r}: write a scheme, as in skill://name/{SKILL_FILE}"
            )
        resources: Any = self.resources
        said = cast("list[Any]", resources) if isinstance(resources, list) else []
        listed = [_file(each) for each in said]
        if len(listed) > MOST_FILES or sum(each.size for each in listed) > MOST_BYTES:
            raise ValueError(f"the skill is too large: it may have {MOST_FILES} files and {MOST_BYTES} bytes in total")
        files: dict[str, SkillFile] = {}
        for each in listed:
            path = unquote(each.uri.removeprefix(self.root))
            if not each.uri.startswith(self.root) or not is_inside(path) or path in files:
                raise ValueError(f"the file {each.uri[:200]!r} is outside the skill's folder, or is listed twice")
            files[path] = each
        if SKILL_FILE not in files:
            raise ValueError(f"the skill's list of files must contain {SKILL_FILE}")
        return files


def digest_of(contents: bytes) -> str:
    """Return the digest of a skill file (SEP-2640, Integrity and Verification: SHA-256 of the raw bytes)."""
    return f"sha256:{sha256(contents).hexdigest()}"


def is_inside(path: str) -> bool:
    """Return true if the relative ``path`` of a skill file stays inside the skill's folder.

    No part of the path may be empty, ``.`` or ``..``, or contain a backslash, a control character or a lone surrogate.
    """
    parts = path.split("/")
    return all(part not in ("", ".", "..") for part in parts) and _UNFIT.search(path) is None


def _file(said: Any) -> SkillFile:
    if isinstance(said, SkillFile):
        return said
    members = as_object(said)
    uri, digest, size = members.get("uri"), members.get("digest"), members.get("size")
    if not (isinstance(uri, str) and isinstance(digest, str) and type(size) is int and size >= 0):
        raise ValueError("each file of a skill must have a URI, a digest and a size")
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"invalid digest {digest[:100]!r}: a digest must be sha256: followed by 64 hexadecimal digits")
    return SkillFile(uri, digest, size)


@value
class ListSkillsResult:
    """Result of a request for the list of skills: a page of skills."""

    skills: list[Skill]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")


@value
class GetSkillParams:
    """Parameters of the request for one skill: the URI of its ``SKILL.md``."""

    uri: str


@value
class GetSkillResult:
    """Result of the request for one skill: the `Skill` as the server describes it."""

    skill: Skill
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")


@value
class ReadDirectoryParams:
    """Parameters of the request to list a folder of a skill.

    They are the folder's URI, without a slash at the end, and the cursor of the page.
    """

    uri: str
    cursor: str | None = None


@value
class ReadDirectoryResult:
    """Result of listing a folder of a skill: a page of its entries.

    Subfolders have the type ``inode/directory``.
    """

    resources: list[Resource]
    next_cursor: str | None = None
