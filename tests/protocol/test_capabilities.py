"""What a client declared, asked for by path (CX-08, EL-03)."""

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
def test_nothing_is_supported_that_was_not_declared(path: str) -> None:
    assert not ClientCapabilities().supports(path)


@pytest.mark.parametrize("name", ["sampling", "elicitation", "roots", "experimental", "extensions", "tasks"])
def test_an_empty_object_declares_a_capability(name: str) -> None:
    assert declared(**{name: {}}).supports(name)


def test_a_capability_does_not_declare_its_parts() -> None:
    client = declared(sampling={}, roots={}, tasks={})
    assert not client.supports("sampling.tools")
    assert not client.supports("sampling.context")
    assert not client.supports("roots.list_changed")
    assert not client.supports("tasks.list")


def test_a_declared_part_is_supported_and_its_neighbour_not() -> None:
    client = declared(sampling={"tools": {}})
    assert client.supports("sampling.tools")
    assert not client.supports("sampling.context")


def test_a_bare_elicitation_means_form_only() -> None:
    client = declared(elicitation={})
    assert client.supports("elicitation.form")
    assert not client.supports("elicitation.url")


def test_url_alone_does_not_mean_form() -> None:
    client = declared(elicitation={"url": {}})
    assert client.supports("elicitation.url")
    assert not client.supports("elicitation.form")


def test_form_and_url_may_both_be_declared() -> None:
    client = declared(elicitation={"form": {}, "url": {}})
    assert client.supports("elicitation.form")
    assert client.supports("elicitation.url")


@pytest.mark.parametrize("path", ["roots.list_changed", "roots.listChanged"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_counts_when_it_is_true_under_either_name(path: str, flag: bool) -> None:
    assert declared(roots={"listChanged": flag}).supports(path) is flag


def test_extensions_are_found_by_their_dotted_names() -> None:
    client = declared(extensions={"io.example/tides": {"now": {}}, "io.example/off": False})
    assert client.supports("extensions.io.example/tides")
    assert not client.supports("extensions.io.example/waves")
    assert not client.supports("extensions.io.example/off")


def test_parts_of_parts_are_found() -> None:
    client = declared(tasks={"requests": {"sampling": {"createMessage": {}}}})
    assert client.supports("tasks.requests.sampling.createMessage")
    assert not client.supports("tasks.requests.elicitation")


@pytest.mark.parametrize("path", ["supports", "__class__", "roots.list_changed.more", "sampling.__class__"])
def test_a_path_to_something_else_is_not_supported(path: str) -> None:
    assert not declared(roots={"listChanged": True}, sampling={}).supports(path)
