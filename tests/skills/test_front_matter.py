"""Front matter: YAML 1.2 with the core schema, read as JSON, and safe against hostile input."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp import Skills
from trio_mcp.lazy import extra
from trio_mcp.skills import folder
from trio_mcp.skills.folder import LONGEST, front_matter_of


def read(yaml: str) -> dict[str, Any]:
    return front_matter_of(f"---\n{yaml}\n---\nBody.\n")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2026-11-27", "2026-11-27"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("<<", "<<"),
        ("~", None),
        ("", None),
        ("null", None),
        ("True", True),
        ("FALSE", False),
        ("014", 14),
        ("0o14", 12),
        ("0x1F", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("2.1.0", "2.1.0"),
        ('"true"', "true"),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("!!int 12", 12),
        ("[1, {b: [x]}, ]", [1, {"b": ["x"]}]),
        ("|\n  one\n  two", "one\ntwo\n"),
        (">-\n  one\n  two", "one two"),
        ("é😀", "é😀"),
        ("x # comment", "x"),
    ],
)
def test_front_matter_values_are_read_by_the_yaml_core_schema(written: str, value: Any) -> None:
    found = read(f"a: {written}")["a"]
    assert (found, type(found)) == (value, type(value))


def test_front_matter_keys_are_read_as_strings_in_order() -> None:
    found = read("zebra: 1\n12: x\ntrue: y\nnested: {b: 1, a: 2}")
    assert list(found) == ["zebra", "12", "true", "nested"]
    assert list(found["nested"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("a: 1\na: 2", "the key 'a' twice"),
        ("a: &x 1\nb: *x", "must not have a YAML alias"),
        ("a: .inf", "number .inf, which JSON does not support"),
        ("a: .NaN", "which JSON does not support"),
        ("a: !!python/object:os.system x", "tag python/object:os.system"),
        ("a: !!binary aGk=", "tag binary"),
        ("a: !mine {}", "tag !mine"),
        ("a: !!int x", "'x', which is not a valid int"),
        ("? [x]\n: y", "the keys of the front matter must be text"),
        ("- a", "the front matter must be a mapping"),
        ("just text", "the front matter must be a mapping"),
        ("", "the front matter must be a mapping"),
        ("a: b: c", "is not valid YAML"),
        ("a: [", "is not valid YAML"),
        ("a: \x85b", "line separator"),
        ("a: 1\n...\n--- b: 2", "must be a single document"),
        ("a: \x07", "is not valid YAML"),
        ("a: " + "[" * 100 + "]" * 100, "has more than 32 levels of nesting"),
        ("a: " + "9" * 5000, "which JSON does not support"),
        ("a: " + "x" * LONGEST, f"longer than {LONGEST} characters"),
    ],
)
def test_front_matter_with_values_that_json_cannot_represent_is_refused(written: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        read(written)


def test_front_matter_longer_than_32768_characters_is_refused() -> None:
    longest = "a: " + "x" * (32768 - 4) + "\n"
    assert len(front_matter_of(f"---\n{longest}---\n")["a"]) == 32764
    with pytest.raises(ValueError, match="longer than 32768 characters"):
        front_matter_of(f"---\nx{longest}---\n")


@pytest.mark.parametrize(
    "text",
    ["", "# Title", "---\nname: a\n", " ---\nname: a\n---\n", "----\nname: a\n----\n", "x\n---\nname: a\n---\n"],
)
def test_text_without_front_matter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must begin with front matter"):
        front_matter_of(text)


@pytest.mark.parametrize("text", ["\ufeff---\nname: a\n---\n", "---\r\nname: a\r\n---\r\nBody", "--- \nname: a\n---"])
def test_front_matter_with_byte_order_mark_and_crlf_is_read(text: str) -> None:
    assert front_matter_of(text) == {"name": "a"}


@pytest.mark.parametrize("part", ["[" * 30_000, "{a: " * 8_000, "- " * 15_000, "? " * 15_000, "x, " * 10_000])
def test_malicious_front_matter_is_refused_in_bounded_time(part: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="front matter"):
        read(f"a: [{part}")
    assert time.process_time() - began < 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="ascii"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), JSON, max_size=5))
def test_front_matter_written_as_json_is_read(value: dict[str, Any]) -> None:
    assert read(json.dumps(value)) == value


@given(st.text(max_size=60))
def test_random_front_matter_is_read_as_a_mapping_or_raises_value_error(text: str) -> None:
    found: object = {}
    try:
        found = read(text)
    except ValueError as error:
        found = {"error": str(error)[:500]}
    assert isinstance(found, dict)


def test_skills_object_immediately_raises_import_error_if_pyyaml_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "yaml", extra("no_such_module", "install trio-mcp[skills]"))
    with pytest.raises(ImportError, match=r"install trio-mcp\[skills\]"):
        Skills()
