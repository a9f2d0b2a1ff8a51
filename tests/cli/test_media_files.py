"""Saving images, sounds and files of a result in a folder."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from trio_mcp.cli.printable import CommandError
from trio_mcp.cli.request import saved, show_result
from trio_mcp.types import (
    REVISIONS,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

DATA = base64.b64encode(b"data").decode()


@pytest.mark.parametrize(
    ("block", "file"),
    [
        (ImageContent(DATA, "image/png"), "draw-1.png"),
        (AudioContent(DATA, "audio/x-wav; rate=8000"), "draw-1.wav"),
        (EmbeddedResource(BlobResourceContents("shop://../../dot", DATA, "application/pdf")), "draw-1.pdf"),
        (ImageContent(DATA, "image/../../../etc/passwd"), "draw-1.bin"),
        (ImageContent(DATA, ""), "draw-1.bin"),
    ],
)
def test_media_content_is_saved_in_a_file_named_after_the_tool_and_content_type(
    block: ImageContent, file: str, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    assert saved(block, folder, "draw") == folder / file
    assert (folder / file).read_bytes() == b"data"
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == [file]


def test_saved_media_content_overwrites_no_existing_file(tmp_path: Path) -> None:
    (tmp_path / "draw-1.png").write_text("mine")
    assert saved(ImageContent(DATA, "image/png"), tmp_path, "draw") == tmp_path / "draw-2.png"
    assert (tmp_path / "draw-1.png").read_text() == "mine"
    assert saved(TextContent("text"), tmp_path, "draw") is None


def test_media_of_a_tool_with_path_separators_in_its_name_is_saved_inside_the_chosen_folder(tmp_path: Path) -> None:
    assert saved(ImageContent(DATA, "image/png"), tmp_path / "a", "../../x/.y") == tmp_path / "a" / "_x_y-1.png"


def test_media_that_cannot_be_saved_raises_command_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="not valid base64"):
        saved(ImageContent("!", "image/png"), tmp_path, "draw")
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="cannot save files"):
        saved(ImageContent(DATA, "image/png"), tmp_path / "file", "draw")


def test_command_output_contains_the_path_of_a_saved_image_in_place_of_the_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = CallToolResult([TextContent("here:"), ImageContent(DATA, "image/png")])
    show_result(result, REVISIONS["2026-07-28"], as_json=False, save=tmp_path, name="draw")
    assert capsys.readouterr().out == f"here:\n[saved {tmp_path / 'draw-1.png'}]\n"
