"""What a protected resource says of itself, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .asking import ISSUER, RESOURCE, Head, challenges, protected, refused

ROOT = "/.well-known/oauth-protected-resource"


def document(**more: Any) -> dict[str, Any]:
    return json.loads(protected(**more)._gate().metadata)


def test_resource_metadata_document_contains_the_configured_values() -> None:
    assert document(scopes=["b", "a"], resource_name="Notes", resource_documentation="https://example.com/docs") == {
        "resource": RESOURCE,
        "authorization_servers": [ISSUER],
        "scopes_supported": ["a", "b"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Notes",
        "resource_documentation": "https://example.com/docs",
    }


def test_resource_metadata_document_omits_values_that_are_not_configured() -> None:
    assert document().keys() == {"resource", "authorization_servers", "bearer_methods_supported"}


@pytest.mark.parametrize("dpop", ["accepted", "required"])
def test_resource_metadata_declares_dpop_support(dpop: str) -> None:
    said = document(dpop=dpop)
    assert "ES256" in said["dpop_signing_alg_values_supported"]
    assert not {"none", "HS256"} & set(said["dpop_signing_alg_values_supported"])
    assert said.get("dpop_bound_access_tokens_required", False) == (dpop == "required")


def test_resource_metadata_lists_additional_scopes() -> None:
    assert document(scopes=["a"], scopes_supported=["a", "b"])["scopes_supported"] == ["a", "b"]


SHAPES = [
    ("https://h.example", f"https://h.example{ROOT}", {ROOT}),
    ("https://h.example/", f"https://h.example{ROOT}", {ROOT}),
    ("https://h.example/mcp", f"https://h.example{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("https://h.example/mcp/", f"https://h.example{ROOT}/mcp/", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("https://h.example/a/b", f"https://h.example{ROOT}/a/b", {ROOT, f"{ROOT}/a/b", f"{ROOT}/a/b/"}),
    ("https://h.example:8443/mcp", f"https://h.example:8443{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("https://h.example:443/mcp", f"https://h.example{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("https://h.example/mcp?a=1", f"https://h.example{ROOT}/mcp?a=1", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("https://h.example?a=1", f"https://h.example{ROOT}?a=1", {ROOT}),
    ("HTTPS://H.Example/Mcp", f"https://h.example{ROOT}/Mcp", {ROOT, f"{ROOT}/Mcp", f"{ROOT}/Mcp/"}),
    ("http://127.0.0.1:8000/mcp", f"http://127.0.0.1:8000{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("http://[::1]:8000/mcp", f"http://[::1]:8000{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
    ("http://localhost/mcp", f"http://localhost{ROOT}/mcp", {ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"}),
]


@pytest.mark.parametrize(("resource", "url", "paths"), SHAPES)
async def test_resource_metadata_url_is_derived_from_the_resource_url(resource: str, url: str, paths: set[str]) -> None:
    gate = protected(resource=resource)._gate()
    refusal = await refused(gate, Head({"host": "evil.example"}))
    assert challenges(refusal)[0].params["resource_metadata"] == url
    assert gate.metadata_paths == paths


@pytest.mark.parametrize(
    "resource",
    [
        "http://mcp.example.com/mcp",
        "mcp.example.com/mcp",
        "/mcp",
        "ftp://mcp.example.com",
        "https://user@mcp.example.com/mcp",
        "https://user:word@mcp.example.com/mcp",
        "https://mcp.example.com/mcp#tools",
        "https://mcp.example.com/mcp#",
        "https:///mcp",
        "https://mcp.example.com/a b",
        "https://mcp.example.com:70000/",
        "http://localhost.example.com/mcp",
        "",
    ],
)
def test_protection_of_a_resource_with_an_invalid_or_unsafe_url_raises_value_error(resource: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        protected(resource=resource)


@pytest.mark.parametrize(
    "issuer",
    ["http://login.example.com", "login", "https://login.example.com?a=1", "https://a@login.example.com", "https://l#"],
)
def test_protection_by_an_issuer_with_an_invalid_or_unsafe_url_raises_value_error(issuer: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        protected(authorization_servers=[issuer])


def test_protection_of_a_resource_without_an_authorization_server_raises_value_error() -> None:
    with pytest.raises(ValueError, match="authorization_servers must not be empty"):
        protected(authorization_servers=[])


@pytest.mark.parametrize("scope", ["", "a b", 'a"', "a\\", "ä", "a\n"])
def test_protection_of_a_resource_with_an_invalid_scope_raises_value_error(scope: str) -> None:
    for name in ("scopes", "scopes_supported"):
        with pytest.raises(ValueError, match="a scope must be printable ASCII"):
            protected(**{name: [scope]})


@pytest.mark.parametrize("name", ["scopes", "scopes_supported", "authorization_servers"])
def test_string_instead_of_a_list_in_the_protection_options_raises_type_error(name: str) -> None:
    with pytest.raises(TypeError, match="must be a list of"):
        protected(**{name: "https://a"})


@pytest.mark.parametrize("name", ["scopes", "scopes_supported"])
def test_offline_access_as_a_required_scope_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="offline_access"):
        protected(**{name: ["offline_access"]})


@pytest.mark.parametrize("name", ["max_cached", "cache_for", "max_verifications"])
def test_limit_of_zero_in_the_protection_options_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be greater than 0"):
        protected(**{name: 0})
