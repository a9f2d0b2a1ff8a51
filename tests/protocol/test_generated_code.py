"""Generated code for classes of the specification agrees with cattrs."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs
import pytest
from cattrs.gen import make_dict_unstructure_fn, override
from tests.protocol.examples import full, minimal, sayable_classes

from trio_mcp.protocol.cattrs_converters import structurer, unstructurer
from trio_mcp.protocol.converters import SHAPES, NotExpressible, Writers, refusal, structure, unstructure
from trio_mcp.protocol.fields import is_in_revision, reader_of, wire_name, writer_of
from trio_mcp.protocol.readers import OPEN
from trio_mcp.protocol.revisions import LATEST_MODERN, REVISIONS, Revision
from trio_mcp.protocol.types.content import AudioContent, TextContent
from trio_mcp.protocol.types.lifecycle import ClientCapabilities, Implementation, Roots
from trio_mcp.protocol.types.tools import CallToolResult

CASES = [(revision, kind) for revision in REVISIONS.values() for kind in sayable_classes(revision)]


class Color(Enum):
    RED = "red"


@attrs.define
class Painted:
    """A class of an extension."""

    color: Color
    hull_parts: tuple[str, ...]
    text: TextContent
    roots: Roots | None = None


@pytest.mark.parametrize(("revision", "kind"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
@pytest.mark.parametrize("example", [minimal, full])
def test_generated_reader_of_a_message_class_returns_the_same_object_as_cattrs(
    revision: Revision, kind: Any, example: Any
):
    data = unstructure(example(kind, revision), revision)
    assert structure(data, kind) == structurer(None).structure(data, kind)


@pytest.mark.parametrize(("revision", "kind"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
@pytest.mark.parametrize("example", [minimal, full])
def test_generated_writer_of_a_message_class_returns_the_same_data_as_cattrs(
    revision: Revision, kind: Any, example: Any
):
    value = example(kind, revision)
    if kind in SHAPES or kind in OPEN:
        return
    attrs.resolve_types(kind)
    overrides: dict[str, Any] = {
        field.name: override(
            rename=wire_name(field.name),
            omit_if_default=field.default is None,
            omit=not is_in_revision(field, revision.name),
        )
        for field in attrs.fields(kind)
    }
    converter = unstructurer(revision, Writers(revision).writer_of, refusal)
    by_cattrs: Any = make_dict_unstructure_fn(kind, converter, **overrides)(value)
    written = unstructure(value, revision)
    if type(written) is dict and written.get("type") != "text":  # links are written as texts in some revisions
        assert list(written.items()) == list(by_cattrs.items())


def test_extension_class_with_nested_specification_classes_is_read_and_written():
    painted = Painted(Color.RED, ("bow", "stern"), TextContent("hi"), Roots(list_changed=True))
    data = {
        "color": "red",
        "hullParts": ["bow", "stern"],
        "text": {"type": "text", "text": "hi"},
        "roots": {"listChanged": True},
    }
    assert structure(data, Painted) == painted
    legacy = REVISIONS["2025-11-25"]
    assert unstructure(painted, legacy) == data
    assert unstructure(painted, LATEST_MODERN)["roots"] == {}


def test_validation_error_inside_an_extension_class_contains_the_path():
    data = {"color": "red", "hullParts": [], "text": {"type": "text", "text": 1}}
    with pytest.raises(ValueError, match=r"^expected a string @ \$\.text\.text$"):
        structure(data, Painted)


def test_structured_content_of_any_class_is_written_as_plain_json():
    content = {"a": [1, {"b": Color.RED}], Color.RED: (1, 2), "text": TextContent("x"), "none": None}
    written = unstructure(CallToolResult(content=[], structured_content=content), LATEST_MODERN)
    assert written["structuredContent"] == {
        "a": [1, {"b": "red"}],
        "red": [1, 2],
        "text": {"type": "text", "text": "x"},
        "none": None,
    }


def test_generated_reader_of_an_optional_field_is_created_when_it_is_first_used():
    asked: list[Any] = []

    def hook_for(kind: Any) -> Any:
        asked.append(kind)
        return lambda value, _: value

    read = reader_of(ClientCapabilities, None, hook_for, None)
    assert read({}, ClientCapabilities) == ClientCapabilities()
    assert Roots | None not in asked
    assert [read({"roots": 1}, None).roots, read({"roots": 2}, None).roots] == [1, 2]
    assert asked.count(Roots | None) == 1


def test_generated_reader_and_writer_skip_fields_that_the_protocol_revision_lacks():
    def unchanged(value: Any, _: Any = None) -> Any:
        return value

    implementation = Implementation("a", "1", title="t", description="d")
    read = reader_of(Implementation, "2025-06-18", lambda _: unchanged, "title")
    assert read({"name": "a", "version": "1", "title": "t", "description": "d"}, None) == Implementation("a", "1")
    write = writer_of(Implementation, "2025-06-18", lambda _: unchanged, unchanged)
    assert write(implementation) == {"name": "a", "version": "1", "title": "t"}


def test_object_of_a_class_that_a_revision_lacks_cannot_be_written() -> None:
    class Spoken(AudioContent):
        """A class of an author."""

    assert unstructure(Spoken(data="", mime_type="audio/wav"), LATEST_MODERN)["type"] == "audio"
    with pytest.raises(NotExpressible, match="content of type 'audio'"):
        unstructure(Spoken(data="", mime_type="audio/wav"), REVISIONS["2024-11-05"])


def test_keys_of_a_dict_are_converted_to_the_annotated_key_type() -> None:
    assert structure({"red": 1}, dict[Color, int]) == {Color.RED: 1}
