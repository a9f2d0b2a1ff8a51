"""A declared capability counts only in revisions that have it."""

from __future__ import annotations

import pytest

from trio_mcp.protocol.revisions import REVISIONS, declares, has_capability
from trio_mcp.protocol.types.lifecycle import ClientCapabilities, Elicitation, Roots, Sampling

ALL = ClientCapabilities(
    {"x": {}}, Roots(), Sampling({}, {}), Elicitation({}, {}), extensions={"io.modelcontextprotocol/ui": {}}
)
_SINCE = {
    "roots": "2024-11-05",
    "sampling": "2024-11-05",
    "sampling.context": "2024-11-05",
    "sampling.tools": "2025-11-25",
    "elicitation": "2025-06-18",
    "elicitation.form": "2025-06-18",
    "elicitation.url": "2025-11-25",
    "experimental.x": "2024-11-05",
    "extensions.io.modelcontextprotocol/ui": "2024-11-05",
}


@pytest.mark.parametrize(("path", "since"), _SINCE.items())
def test_capability_is_supported_since_the_revision_that_added_it(path: str, since: str) -> None:
    for name, revision in REVISIONS.items():
        assert declares(ALL, path, revision) is (name >= since), name
        assert has_capability(revision, path) is (name >= since), name
        assert not declares(ClientCapabilities(), path, revision)


def test_sub_capability_added_in_a_later_revision_is_implied_in_earlier_revisions() -> None:
    bare = ClientCapabilities(sampling=Sampling(), elicitation=Elicitation(url={}))
    for name, supported in (("2025-06-18", True), ("2025-11-25", False), ("2026-07-28", False)):
        assert declares(bare, "sampling.context", REVISIONS[name]) is supported
        assert declares(bare, "elicitation.form", REVISIONS[name]) is supported
