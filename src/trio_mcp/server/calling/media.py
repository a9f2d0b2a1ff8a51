"""Media: images, sounds and files that handlers return; a worker thread reads and encodes them before the answer."""

from __future__ import annotations

import base64
import io
import mimetypes
import os
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar, Final, cast
from urllib.parse import quote

import attrs

from ...classes import frozen, positive
from ...concurrency.workers import run_in_worker
from ...protocol.types.content import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextResourceContents,
)
from ...runtime.requests.scope import RequestScope
from .results import media_kinds

_MAX_BYTES: Final = 8 * 1024 * 1024
"""Base64 makes 11 MiB of them; a message has 16 MiB by default."""
_TEXTS: Final = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")


def _guessed(path: str) -> str | None:
    kind, packed = mimetypes.guess_type(path, strict=False)
    return kind if packed is None else f"application/{packed}"  # rows.csv.gz is no text


@frozen
class Media:
    """Bytes, or the path of a file, as content of a result. A path is read when the handler has returned, in a worker
    thread; a file that is missing, or larger than ``max_bytes``, is a failure of the call.

    ``mime_type`` is guessed by the name of the file. Raises `ValueError` where nothing says the type, or for a type of
    another kind, and `TypeError` for what is neither bytes nor a path.
    """

    _KIND: ClassVar = ""

    source: bytes | str | os.PathLike[str]
    """Bytes, or a path."""
    mime_type: str = ""
    """MIME type; by default that which the name of the file says."""
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    """Hints for clients."""
    max_bytes: int = attrs.field(default=_MAX_BYTES, kw_only=True, validator=positive)
    """Bytes that a file may have."""

    def __attrs_post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.source, bytes | str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
            raise TypeError(f"{name} takes bytes or a path, not {type(self.source).__name__}")
        guessed = None if isinstance(self.source, bytes) else _guessed(os.fspath(self.source))
        known = self.mime_type or guessed or self._default_mime_type()
        if not known.startswith(self._KIND):
            raise ValueError(f"{name} has a type that begins with {self._KIND!r}, not {known!r}")
        object.__setattr__(self, "mime_type", known)

    def _default_mime_type(self) -> str:
        name = type(self).__name__
        raise ValueError(f"nothing says the type of this {name}: {name}(data, {self._KIND + 'TYPE'!r})")

    def read(self) -> ContentBlock:
        """Return the content. Blocks; raises `OSError` and `ValueError`."""
        raise NotImplementedError

    def _bytes(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        with open(self.source, "rb") as file:
            data = file.read(self.max_bytes + 1)
        if len(data) > self.max_bytes:
            raise ValueError(f"{os.fspath(self.source)} has more than {self.max_bytes:,} bytes (max_bytes)")
        return data

    def _encoded(self) -> str:
        return base64.b64encode(self._bytes()).decode()


@frozen
class Image(Media):
    """An image: ``Image("chart.png")``, ``Image(png, "image/png")``. See `Media`."""

    _KIND: ClassVar = "image/"

    def read(self) -> ContentBlock:
        return ImageContent(self._encoded(), self.mime_type, annotations=self.annotations)


@frozen
class Audio(Media):
    """A sound: ``Audio("bell.wav")``, ``Audio(data, "audio/mpeg")``. See `Media`."""

    _KIND: ClassVar = "audio/"

    def read(self) -> ContentBlock:
        return AudioContent(self._encoded(), self.mime_type, annotations=self.annotations)


@frozen
class File(Media):
    """A file as an embedded resource: ``File("report.pdf")``, ``File(data, "text/csv", name="rows.csv")``; as text if
    its type is a text and it is UTF-8. The client is told the name, and nothing else of the path. See `Media`."""

    name: str = attrs.field(default="", kw_only=True)
    """Name for the client; by default that of the file."""

    def _default_mime_type(self) -> str:
        return _guessed(self.name) or "application/octet-stream"

    def read(self) -> ContentBlock:
        data = self._bytes()
        name = self.name or ("file" if isinstance(self.source, bytes) else PurePath(self.source).name)
        uri = f"file:///{quote(name, errors='surrogateescape')}"
        if self.mime_type.startswith(_TEXTS) or self.mime_type.endswith(("+json", "+xml")):
            try:
                text = TextResourceContents(uri, data.decode(), self.mime_type)
            except UnicodeDecodeError:
                pass
            else:
                return EmbeddedResource(text, annotations=self.annotations)
        blob = BlobResourceContents(uri, base64.b64encode(data).decode(), self.mime_type)
        return EmbeddedResource(blob, annotations=self.annotations)


_AS_PNG: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
"""Modes of pillow that PNG has."""


def _read(value: Any) -> Any:
    """Return the content that ``value`` is, if it is media; else ``value``."""
    if isinstance(value, Media):
        return value.read()
    if not isinstance(value, media_kinds()):
        return value
    buffer = io.BytesIO()
    (value if value.mode in _AS_PNG else value.convert("RGB")).save(buffer, "PNG")
    if len(data := buffer.getvalue()) > _MAX_BYTES:
        raise ValueError(f"an image of {value.width} by {value.height} has more than {_MAX_BYTES:,} bytes as PNG")
    return ImageContent(base64.b64encode(data).decode(), "image/png")


async def read_media(value: Any, scope: RequestScope) -> list[Any]:
    """Return ``value``, or the items of a list or tuple, with content in place of media and of images of pillow, read
    in a thread of the request's caller. Raises `OSError` and `ValueError`, and as `run_in_worker`."""
    values = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    threads = scope.runner.workers.share(scope.ticket.caller)
    read = partial(_read_all, values)
    return await run_in_worker(read, threads, lambda: scope.runner.graces, scope.thread_abandoned)


def _read_all(values: list[Any]) -> list[Any]:
    return list(map(_read, values))
