"""Declared client capabilities, looked up by path (CX-08, EL-03)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.protocol.converters import structure
from trio_mcp.protocol.types.lifecycle import ClientCapabilities


def declared(**capabilities: Any) -> ClientCapabilities:
    return structure(capabilities, ClientCapabilities)


@pytest.mark.parametrize(
    "path",
    [
        "sampling",
        "sampling.tools",
        "elicitation",
        "elicitation.form",
        "roots",
        "tasks",
        "extensions.a/b",
        "",
        ".",
    ],
)
def test_capability_check_returns_false_for_an_undeclared_capability(path: str) -> None:
    assert not ClientCapabilities().supports(path)


@pytest.mark.parametrize("name", ["sampling", "elicitation", "roots", "experimental", "extensions", "tasks"])
def test_capability_check_returns_true_for_a_capability_with_an_empty_object(name: str) -> None:
    assert declared(**{name: {}}).supports(name)


def test_declared_capability_does_not_imply_its_sub_capabilities() -> None:
    client = declared(sampling={}, roots={}, tasks={})
    assert not client.supports("sampling.tools")
    assert not client.supports("sampling.context")
    assert not client.supports("roots.list_changed")
    assert not client.supports("tasks.list")


def test_capability_check_returns_true_only_for_a_declared_sub_capability() -> None:
    client = declared(sampling={"tools": {}})
    assert client.supports("sampling.tools")
    assert not client.supports("sampling.context")


def test_empty_elicitation_capability_declares_only_forms() -> None:
    client = declared(elicitation={})
    assert client.supports("elicitation.form")
    assert not client.supports("elicitation.url")


def test_url_elicitation_capability_does_not_imply_form_elicitation() -> None:
    client = declared(elicitation={"url": {}})
    assert client.supports("elicitation.url")
    assert not client.supports("elicitation.form")


def test_client_can_declare_both_form_and_url_elicitation() -> None:
    client = declared(elicitation={"form": {}, "url": {}})
    assert client.supports("elicitation.form")
    assert client.supports("elicitation.url")


@pytest.mark.parametrize("path", ["roots.list_changed", "roots.listChanged"])
@pytest.mark.parametrize("flag", [True, False])
def test_capability_check_accepts_list_changed_in_camel_case_and_snake_case(path: str, flag: bool) -> None:
    assert declared(roots={"listChanged": flag}).supports(path) is flag


def test_capability_check_finds_extension_capabilities_by_their_dotted_names() -> None:
    client = declared(extensions={"io.example/tides": {"now": {}}, "io.example/off": False})
    assert client.supports("extensions.io.example/tides")
    assert not client.supports("extensions.io.example/waves")
    assert not client.supports("extensions.io.example/off")


def test_capability_check_finds_deeply_nested_capabilities() -> None:
    client = declared(tasks={"requests": {"sampling": {"createMessage": {}}}})
    assert client.supports("tasks.requests.sampling.createMessage")
    assert not client.supports("tasks.requests.elicitation")


@pytest.mark.parametrize("path", ["supports", "__class__", "roots.list_changed.more", "sampling.__class__"])
def test_capability_check_returns_false_for_a_path_that_names_no_capability(path: str) -> None:
    assert not declared(roots={"listChanged": True}, sampling={}).supports(path)
