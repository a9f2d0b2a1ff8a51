"""How the results of tools are printed."""

import json

import pytest

from trio_mcp.cli.request import show_result
from trio_mcp.types import (
    REVISIONS,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

LATEST = REVISIONS["2026-07-28"]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (TextContent("two\nlines"), "two\nlines"),
        (AudioContent("AAAA" * 4, "audio/wav"), "[audio, audio/wav, 12 bytes]"),
        (ResourceLink("menu", "shop://menu"), "[resource shop://menu: menu]"),
        (EmbeddedResource(TextResourceContents("shop://menu", "soup")), "soup"),
        (EmbeddedResource(BlobResourceContents("shop://dot", "AAAA")), "[resource shop://dot, 3 bytes]"),
    ],
)
def test_call_command_prints_each_kind_of_content_as_text(block, words: str, capsys: pytest.CaptureFixture[str]):
    show_result(CallToolResult([block]), LATEST, as_json=False)
    assert capsys.readouterr() == (f"{words}\n", "")


def test_call_command_prints_structured_content_if_there_is_no_other_content(capsys: pytest.CaptureFixture[str]):
    show_result(CallToolResult([], structured_content={"a": [1]}), LATEST, as_json=False)
    assert json.loads(capsys.readouterr().out) == {"a": [1]}
    show_result(CallToolResult([TextContent("one")], structured_content={"a": [1]}), LATEST, as_json=False)
    assert capsys.readouterr().out == "one\n"


def test_call_command_prints_an_error_result_to_stderr_if_json_is_not_requested(capsys: pytest.CaptureFixture[str]):
    failed = CallToolResult([TextContent("no luck")], is_error=True)
    show_result(failed, LATEST, as_json=False)
    assert capsys.readouterr() == ("", "no luck\n")
    show_result(failed, LATEST, as_json=True)
    assert json.loads(capsys.readouterr().out)["isError"] is True


def test_call_command_indents_json_text_that_equals_structured_content_only_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    result = CallToolResult([TextContent('{"a":[1]}')], structured_content={"a": [1]})
    show_result(result, LATEST, as_json=False)
    assert capsys.readouterr().out == '{"a":[1]}\n'
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_result(result, LATEST, as_json=False)
    assert capsys.readouterr().out == '{\n  "a": [\n    1\n  ]\n}\n'
    show_result(CallToolResult([TextContent("one")], structured_content={"a": [1]}), LATEST, as_json=False)
    assert capsys.readouterr().out == "one\n"
