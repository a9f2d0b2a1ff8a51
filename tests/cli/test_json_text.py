"""Setting one value in JSON text keeps the rest of the text unchanged."""

import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trio_mcp.cli.file_edits import NotEditable, parse_object, shown_change, with_value

ENTRY = {"command": "python", "args": ["é.py"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "s": {\n    "n": {\n      "a": 1\n    }\n  }\n}'),
        ("{}\n", '{\n  "s": {\n    "n": {\n      "a": 1\n    }\n  }\n}\n'),
        ('{"x": 1}', '{"x": 1, "s": {"n": {"a": 1}}}'),
        ('{"s": {}, "x": 1}', '{"s": {"n": {"a": 1}}, "x": 1}'),
        ('{"s":{"m":2},"x":1}', '{"s":{"m":2, "n": {"a": 1}},"x":1}'),
        ('{"s":{"n":2},"x":1}', '{"s":{"n":{"a": 1}},"x":1}'),
        (
            '{\n\t"x": [1,\n2],\n\t"s": {\n\t\t"m": 0\n\t}\n}\n',
            '{\n\t"x": [1,\n2],\n\t"s": {\n\t\t"m": 0,\n\t\t"n": {\n\t\t\t"a": 1\n\t\t}\n\t}\n}\n',
        ),
        (
            '{\r\n    "s": {},\r\n    "x": 1\r\n}',
            '{\r\n    "s": {\r\n        "n": {\r\n            "a": 1\r\n        }\r\n    },\r\n    "x": 1\r\n}',
        ),
        ('{\n "s": {"m": 0}\n}', '{\n "s": {"m": 0, "n": {"a": 1}}\n}'),
        ('{\n"x": 1\n}', '{\n"x": 1,\n"s": {\n  "n": {\n    "a": 1\n  }\n}\n}'),
    ],
)
def test_json_edit_keeps_the_formatting_of_the_text(before: str, after: str):
    assert with_value(before, ("s", "n"), {"a": 1}) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "x": 1 // one\n  // two\n}', '{\n  "x": 1, // one\n  // two\n  "n": 2\n}'),
        ('{\n  "x": 1, // one,\n}\n// end', '{\n  "x": 1, // one,\n  "n": 2\n}\n// end'),
        ('{\r\n\t"x": [1,],\r\n\t/* a\r\n\tb */\r\n}', '{\r\n\t"x": [1,],\r\n\t/* a\r\n\tb */\r\n\t"n": 2\r\n}'),
        ('{"x": "//", /* one */}', '{"x": "//", "n": 2 /* one */}'),
        ('{"x": 1 /* , */}', '{"x": 1, "n": 2 /* , */}'),
        ('{"x": 1,}', '{"x": 1, "n": 2}'),
        ("{\n  // none yet\n}", '{\n  // none yet\n  "n": 2\n}'),
        ("{ // none yet\n}", '{ // none yet\n  "n": 2\n}'),
        ('// first\n{"n": /* of */ 1, // old\n}', '// first\n{"n": /* of */ 2, // old\n}'),
        ('{"x": "\\"// no comment"}', '{"x": "\\"// no comment", "n": 2}'),
    ],
)
def test_json_edit_keeps_comments_and_trailing_commas(before: str, after: str):
    assert with_value(before, ("n",), 2) == after
    assert parse_object(after)["n"] == 2


def test_json_edit_keeps_a_comment_in_an_empty_object():
    after = with_value('{"x": 1, "s": {\n    // none yet\n}}', ("s", "n"), 2)
    assert after == '{"x": 1, "s": {\n    // none yet\n"n": 2\n}}'


def test_json_edit_sets_the_last_of_several_members_with_the_same_name():
    assert with_value('{"a": 1, "a": 2}', ("a",), 3) == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"a": 1,\n  // why\n  b\n}',
            "the file is not valid JSON: Expecting property name enclosed in double quotes in line 3",
        ),
        ('{"a": 1 /* why }', "the file is not valid JSON: Expecting ',' delimiter in line 1, column 9"),
        ('{"a": }', "the file is not valid JSON: Expecting value in line 1, column 7"),
        ("[]", "the file must contain a JSON object"),
        ("[" * 100_000, "the file is nested too deeply"),
        ('{"s": []}', "s in the file must be a JSON object"),
    ],
)
def test_json_edit_of_invalid_text_raises_an_error_with_the_position(text: str, words: str):
    with pytest.raises(NotEditable) as caught:
        with_value(text, ("s", "n"), {})
    assert str(caught.value).startswith(words)


texts = st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
settings = st.dictionaries(texts | st.just("s"), values | st.dictionaries(texts, values, max_size=3), max_size=4)


@given(settings, st.sampled_from([None, 1, 4, "\t"]), st.booleans(), texts)
def test_json_edit_changes_one_value_and_keeps_all_other_text(
    content: dict[str, Any], indent: int | str | None, spaced: bool, name: str
):
    section = content.get("s", {})
    assume(isinstance(section, dict))
    before = json.dumps(content, indent=indent, separators=(" ,  ", ":") if spaced else None)
    after = with_value(before, ("s", name), ENTRY)
    assert parse_object(after) == {**content, "s": {**section, name: ENTRY}}
    assert list(parse_object(after)) == list({**content, "s": None})
    if content and name not in section and content.get("s") != {}:
        same = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
        assert after.endswith(before[same:])


@given(settings, st.sampled_from([1, 4, "\t"]), st.booleans(), texts)
def test_json_edit_keeps_every_comment_of_the_text(
    content: dict[str, Any], indent: int | str, trailing: bool, name: str
):
    section = content.get("s", {})
    assume(isinstance(section, dict))
    lines = json.dumps(content, indent=indent).split("\n")
    comments = [f'// {number}, "}}' if number % 2 else f"/* {number} */" for number in range(len(lines))]
    ends = [
        "," if trailing and _may_end_with_a_comma(*pair) else "" for pair in zip(lines, [*lines[1:], ""], strict=True)
    ]
    before = "\n".join(map("".join, zip(lines, ends, comments, strict=True)))
    after = with_value(before, ("s", name), 7)
    assert parse_object(after) == {**content, "s": {**section, name: 7}}
    kept = [comment for comment in comments if comment in after]
    assert kept == comments or name in section


def _may_end_with_a_comma(line: str, following: str) -> bool:
    return line[-1] not in ",{[" and following.strip()[:1] in ("}", "]")


@pytest.mark.parametrize(
    "text",
    [
        "{" + "/* " * 300_000,
        '{"a": "' + '\\"' * 300_000,
        "{" + "/* */" * 200_000 + "}",
        "{" + ", ".join(f'"{number}": 1' for number in range(100_000)) + "}",
        "{" + ",".join(f'\n"{number}": 1' for number in range(100_000)) + "}",
        '{"s": {' + ",\n".join(f'"{number}": 1 // "' for number in range(50_000)) + "\n}}",
    ],
    ids=["comments", "string", "short comments", "a line", "lines", "commented"],
)
def test_json_edit_of_a_long_text_takes_linear_time(text: str):
    with suppress(NotEditable):
        assert parse_object(with_value(text, ("s", "n"), 7))["s"]["n"] == 7


lines = st.lists(st.sampled_from(["a", "b", "{", "", "\u2028x\f"]), max_size=12)


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@given(lines, lines, st.booleans(), st.booleans())
def test_diff_printed_by_the_install_command_can_be_applied_with_the_patch_program(
    old: list[str], new: list[str], old_ends: bool, new_ends: bool
):
    texts = ["".join(f"{line}\n" for line in each) for each in (old, new)]
    before, after = (
        text if ends else text.removesuffix("\n") for text, ends in zip(texts, (old_ends, new_ends), strict=True)
    )
    assume(before != after)
    with TemporaryDirectory() as folder:
        (file := Path(folder) / "file").write_text(before)
        change = shown_change(before, after, "file")
        done = subprocess.run(["patch", "-s", "-p0", str(file)], input=change, text=True, cwd=folder, check=False)
        assert done.returncode == 0, change
        assert (file.read_text() if file.exists() else "") == after, change


def test_diff_of_a_long_file_is_computed_in_linear_time():
    before = "{\n" + "".join(f"// {number % 200}\n" for number in range(500_000)) + "}\n"
    change = shown_change(before, with_value(before, ("x",), 1), "file")
    assert change.count("\n") == 8
