"""Matching URIs against templates."""

from __future__ import annotations

import pytest

from trio_mcp.server.uri_templates import UriTemplate


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("note://{name}", "note://a%20b", {"name": "a b"}),
        ("note://{name}", "note://a/b", None),
        ("file:///{+path}", "file:///a/b.txt", {"path": "a/b.txt"}),
        ("file:///{path*}", "file:///a/b", {"path": "a/b"}),
        ("db://{table}/{row}", "db://users/7", {"table": "users", "row": "7"}),
        ("a.b://{x}", "aXb://1", None),
        ("note://{name}", "note://", None),
    ],
)
def test_a_uri_is_matched_whole(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert UriTemplate(template).match(uri) == values


@pytest.mark.parametrize("template", ["x://{?q}", "x://{a,b}", "x://{", "x://}", "x://{a}{a}"])
def test_what_cannot_be_matched_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="x://"):
        UriTemplate(template)
