"""Images, sounds and files as results: read in a thread, and told as content."""

from __future__ import annotations

import base64
import io
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Audio, File, Image, Limits, Server, open_memory
from trio_mcp.server.calling.results import result_maker
from trio_mcp.types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

PNG = base64.b64encode(b"png").decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chart.png").write_bytes(b"png")
    (tmp_path / "bell.wav").write_bytes(b"wav")
    (tmp_path / "a b.csv").write_bytes("ä,1".encode())
    (tmp_path / "odd.csv").write_bytes(b"\xff")
    (tmp_path / "report.pdf").write_bytes(b"pdf")
    return tmp_path


def server_of(value: Any) -> Server:
    server = Server("s")

    @server.tool
    async def made():  # type: ignore[no-untyped-def]
        return value

    @server.prompt
    async def shown():  # type: ignore[no-untyped-def]
        return value

    return server


async def content_of(value: Any, era: Literal["legacy", "modern"] = "modern") -> list[Any]:
    async with open_memory(server_of(value), era=era) as client:
        result = await client.call_tool("made")
        assert result.structured_content is None
        assert not result.is_error, result.text
        messages = (await client.get_prompt("shown")).messages
        assert [message.content for message in messages] == result.content
        return list(result.content)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_media_from_a_path_is_read_with_a_guessed_mime_type(
    folder: Path, era: Literal["legacy", "modern"]
) -> None:
    values = [Image(folder / "chart.png"), "text", Audio(str(folder / "bell.wav")), File(folder / "a b.csv")]
    assert await content_of(values, era) == [
        ImageContent(PNG, "image/png"),
        TextContent("text"),
        AudioContent(base64.b64encode(b"wav").decode(), "audio/x-wav"),
        EmbeddedResource(TextResourceContents("file:///a%20b.csv", "ä,1", "text/csv")),
    ]


async def test_media_from_bytes_has_the_given_mime_type(folder: Path) -> None:
    hints = Annotations(priority=1.0)
    assert await content_of(Image(b"png", "image/png", annotations=hints)) == [
        ImageContent(PNG, "image/png", annotations=hints)
    ]
    assert await content_of((File(b"{}", name="a.json"), File(b"\x00"))) == [
        EmbeddedResource(TextResourceContents("file:///a.json", "{}", "application/json")),
        EmbeddedResource(BlobResourceContents("file:///file", "AA==", "application/octet-stream")),
    ]


async def test_resource_file_that_is_not_utf_8_is_sent_as_a_blob(folder: Path) -> None:
    first, second = await content_of([File(folder / "odd.csv"), File(folder / "report.pdf")])
    assert first.resource == BlobResourceContents("file:///odd.csv", "/w==", "text/csv")
    assert second.resource.mime_type == "application/pdf"
    assert str(folder) not in repr((first, second))


async def test_uri_of_a_media_file_keeps_the_bytes_of_a_non_utf8_name() -> None:
    (block,) = await content_of(File(b"x", name="caf\udce9.txt"))
    assert block.resource.uri == "file:///caf%E9.txt"


def test_compressed_media_file_has_the_mime_type_of_the_compression() -> None:
    assert File("rows.csv.gz").mime_type == "application/gzip"
    assert File("rows.unknown").mime_type == "application/octet-stream"
    assert File("rows", "text/csv").mime_type == "text/csv"
    assert Image("photo.webp").mime_type == "image/webp"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Image(b"png"), r"the MIME type of this Image is unknown: write Image\(data, 'image/TYPE'\)"),
        (lambda: Audio("bell"), r"the MIME type of this Audio is unknown"),
        (lambda: Image("rows.csv"), r"the MIME type of Image must begin with 'image/', but is 'text/csv'"),
        (lambda: Audio(b"", "image/png"), r"the MIME type of Audio must begin with 'audio/'"),
        (lambda: Image("a.png", max_bytes=0), r"max_bytes must be greater than 0"),
    ],
)
def test_media_object_raises_at_creation_if_the_mime_type_does_not_fit_its_class(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_media_with_neither_bytes_nor_path_raises() -> None:
    with pytest.raises(TypeError, match="Image takes bytes or a path, not BytesIO"):
        Image(io.BytesIO())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["missing.png", "large.png"])
async def test_error_for_an_unreadable_media_file_hides_its_path_from_the_client(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "large.png").write_bytes(b"x" * 11)
    async with open_memory(server_of(Image(folder / name, max_bytes=10))) as client:
        result = await client.call_tool("made")
    assert result.is_error
    assert result.text == "internal error in tool made"
    assert name in caplog.text


async def test_endless_media_file_is_read_only_up_to_the_size_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with open_memory(server_of(File("/dev/zero"))) as client:
        assert (await client.call_tool("made")).is_error
    assert "/dev/zero is larger than 8,388,608 bytes (max_bytes)" in caplog.text


async def test_media_file_is_read_in_a_cancellable_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, gate, read = trio.Event(), threading.Event(), Image.read

    def blocked(self: Image) -> Any:
        trio.from_thread.run_sync(started.set)  # of a thread, which trio started
        gate.wait(PATIENCE)
        return read(self)

    monkeypatch.setattr(Image, "read", blocked)
    async with open_memory(server_of(Image(folder / "chart.png"))) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "made")
        await started.wait()
        nursery.cancel_scope.cancel()
    assert not gate.is_set()
    gate.set()
    async with open_memory(server_of(Image(folder / "chart.png"))) as client:
        assert (await client.call_tool("made")).content == [ImageContent(PNG, "image/png")]


async def test_tool_timeout_includes_the_time_to_read_a_returned_media_file(tmp_path: Path) -> None:
    server = Server("s", limits=Limits(cleanup_grace=0.05))
    os.mkfifo(silent := tmp_path / "silent.png")
    writer = os.open(silent, os.O_RDWR)  # until it's closed, the thread can open the file, and waits for bytes

    @server.tool(timeout=0.05)
    async def picture() -> Image:
        return Image(silent)

    async with open_memory(server) as client:
        result = await client.call_tool("picture")
        assert (result.is_error, result.text) == (True, "picture took longer than its limit of 0.05 seconds")
    os.close(writer)  # lets the thread go


async def test_pillow_image_result_becomes_an_image_block() -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs pillow: pip install -e '.[test]'")
    for mode in ("RGB", "RGBA", "L", "P", "1", "CMYK", "F"):
        (block,) = await content_of(pillow.new(mode, (2, 3)))
        assert block.mime_type == "image/png"
        assert pillow.open(io.BytesIO(base64.b64decode(block.data))).size == (2, 3)
    assert len(await content_of(["before", pillow.new("RGB", (1, 1))])) == 2
    assert result_maker(pillow.Image, None)[0] is None


@dataclass
class Report:
    title: str
    chart: Image


@pytest.mark.parametrize("returns", [Image, list[Image | str], Image | None, tuple[File, Audio], Any])
def test_tool_that_returns_media_has_no_output_schema(returns: Any) -> None:
    assert result_maker(returns, None)[0] is None


def test_media_field_in_a_result_class_raises_at_registration() -> None:
    async def report() -> Report:
        raise NotImplementedError

    with pytest.raises(
        TypeError, match="the return annotation of report cannot be used: media, such as an Image, are content"
    ):
        Server("s").tool(report)


async def test_media_inside_structured_data_raises_an_error_with_instructions(caplog: pytest.LogCaptureFixture) -> None:
    async with open_memory(server_of({"chart": Image(b"", "image/png")})) as client:
        assert (await client.call_tool("made")).is_error
    assert "return them alone or in a list, -> list[str | Image]" in caplog.text


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_resource_can_return_a_file(folder: Path, era: Literal["legacy", "modern"]) -> None:
    server = Server("s")

    @server.resource("file://{name}")
    async def file(name: str) -> File:
        return File(folder / name)

    @server.resource("chart://now", mime_type="image/x")
    def chart() -> Image:
        return Image(os.fspath(folder / "chart.png"))

    async with open_memory(server, era=era) as client:
        (text,) = (await client.read_resource("file://a%20b.csv")).contents
        assert text == TextResourceContents("file://a%20b.csv", "ä,1", "text/csv")
        (blob,) = (await client.read_resource("chart://now")).contents
        assert blob == BlobResourceContents("chart://now", PNG, "image/x")


@pytest.mark.commands
def test_media_module_is_not_imported_by_a_server_without_media() -> None:
    import subprocess

    code = "import sys, trio_mcp; trio_mcp.Server('s'); print([n for n in sys.modules if n.endswith('.media')])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
