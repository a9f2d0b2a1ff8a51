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
def test_undeclared_capability_is_not_supported(path: str) -> None:
    assert not ClientCapabilities().supports(path)


@pytest.mark.parametrize("name", ["sampling", "elicitation", "roots", "experimental", "extensions", "tasks"])
def test_empty_object_declares_a_capability(name: str) -> None:
    assert declared(**{name: {}}).supports(name)


def test_declared_capability_does_not_imply_its_sub_capabilities() -> None:
    client = declared(sampling={}, roots={}, tasks={})
    assert not client.supports("sampling.tools")
    assert not client.supports("sampling.context")
    assert not client.supports("roots.list_changed")
    assert not client.supports("tasks.list")


def test_only_the_declared_sub_capability_is_supported() -> None:
    client = declared(sampling={"tools": {}})
    assert client.supports("sampling.tools")
    assert not client.supports("sampling.context")


def test_empty_elicitation_capability_means_form_only() -> None:
    client = declared(elicitation={})
    assert client.supports("elicitation.form")
    assert not client.supports("elicitation.url")


def test_elicitation_url_capability_does_not_imply_form() -> None:
    client = declared(elicitation={"url": {}})
    assert client.supports("elicitation.url")
    assert not client.supports("elicitation.form")


def test_elicitation_form_and_url_can_both_be_declared() -> None:
    client = declared(elicitation={"form": {}, "url": {}})
    assert client.supports("elicitation.form")
    assert client.supports("elicitation.url")


@pytest.mark.parametrize("path", ["roots.list_changed", "roots.listChanged"])
@pytest.mark.parametrize("flag", [True, False])
def test_list_changed_flag_is_read_under_either_spelling(path: str, flag: bool) -> None:
    assert declared(roots={"listChanged": flag}).supports(path) is flag


def test_extension_capabilities_are_found_by_their_dotted_names() -> None:
    client = declared(extensions={"io.example/tides": {"now": {}}, "io.example/off": False})
    assert client.supports("extensions.io.example/tides")
    assert not client.supports("extensions.io.example/waves")
    assert not client.supports("extensions.io.example/off")


def test_deeply_nested_capabilities_are_found() -> None:
    client = declared(tasks={"requests": {"sampling": {"createMessage": {}}}})
    assert client.supports("tasks.requests.sampling.createMessage")
    assert not client.supports("tasks.requests.elicitation")


@pytest.mark.parametrize("path", ["supports", "__class__", "roots.list_changed.more", "sampling.__class__"])
def test_capability_path_that_names_no_capability_is_not_supported(path: str) -> None:
    assert not declared(roots={"listChanged": True}, sampling={}).supports(path)
