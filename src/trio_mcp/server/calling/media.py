"""Images, audio and files as results of handlers. A worker thread reads and encodes this media before the response is
sent."""

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
"""The default maximum file size. A file of this size becomes 11 MiB of base64, which fits within the default message
limit of 16 MiB."""
_TEXTS: Final = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")


def _guessed(path: str) -> str | None:
    kind, packed = mimetypes.guess_type(path, strict=False)
    return kind if packed is None else f"application/{packed}"  # a compressed file, such as rows.csv.gz, isn't text


@frozen
class Media:
    """Bytes or a file that a handler returns as content of the handler's result. Base class of `Image`, `Audio` and
    `File`.

    The file is read in a worker thread after the handler has returned. If it's missing or larger than ``max_bytes``,
    the call fails. ``mime_type`` is guessed from the file name.

    Raises `ValueError` if the type can't be guessed or is of the wrong kind, and `TypeError` unless ``source`` is bytes
    or a path.
    """

    _KIND: ClassVar = ""

    source: bytes | str | os.PathLike[str]
    """The content as bytes, or the path of a file."""
    mime_type: str = ""
    """MIME type of the content. By default, it is guessed from the file name."""
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    """Annotations of the content, which are hints for clients."""
    max_bytes: int = attrs.field(default=_MAX_BYTES, kw_only=True, validator=positive)
    """Maximum size of the file in bytes."""

    def __attrs_post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.source, bytes | str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
            raise TypeError(f"{name} takes bytes or a path, not {type(self.source).__name__}")
        guessed = None if isinstance(self.source, bytes) else _guessed(os.fspath(self.source))
        known = self.mime_type or guessed or self._default_mime_type()
        if not known.startswith(self._KIND):
            raise ValueError(f"the MIME type of {name} must begin with {self._KIND!r}, but is {known!r}")
        object.__setattr__(self, "mime_type", known)

    def _default_mime_type(self) -> str:
        name = type(self).__name__
        raise ValueError(f"the MIME type of this {name} is unknown: write {name}(data, {self._KIND + 'TYPE'!r})")

    def read(self) -> ContentBlock:
        """Return the bytes or the file as a content block, which contains the data as base64.

        Blocks the thread while reading the file. Raises `OSError` if the file can't be read, and `ValueError` if the
        file is too large.
        """
        raise NotImplementedError

    def _bytes(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        with open(self.source, "rb") as file:
            data = file.read(self.max_bytes + 1)
        if len(data) > self.max_bytes:
            raise ValueError(f"{os.fspath(self.source)} is larger than {self.max_bytes:,} bytes (max_bytes)")
        return data

    def _encoded(self) -> str:
        return base64.b64encode(self._bytes()).decode()


@frozen
class Image(Media):
    """An image in a handler's result: ``Image("chart.png")``, ``Image(png, "image/png")``. See `Media`."""

    _KIND: ClassVar = "image/"

    def read(self) -> ContentBlock:
        return ImageContent(self._encoded(), self.mime_type, annotations=self.annotations)


@frozen
class Audio(Media):
    """Audio in a handler's result: ``Audio("bell.wav")``, ``Audio(data, "audio/mpeg")``. See `Media`."""

    _KIND: ClassVar = "audio/"

    def read(self) -> ContentBlock:
        return AudioContent(self._encoded(), self.mime_type, annotations=self.annotations)


@frozen
class File(Media):
    """A file as an embedded resource: ``File("report.pdf")``, ``File(data, "text/csv", name="rows.csv")``.

    It is sent as text if its MIME type is a text type and its content is UTF-8. The client sees the file name, but not
    the rest of the path. See `Media`.
    """

    name: str = attrs.field(default="", kw_only=True)
    """File name that the client sees. By default, it is the last component of the path."""

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
"""Pillow image modes that PNG supports."""


def _read(value: Any) -> Any:
    """Return the content block of ``value`` if ``value`` is media. Otherwise return ``value`` unchanged."""
    if isinstance(value, Media):
        return value.read()
    if not isinstance(value, media_kinds()):
        return value
    buffer = io.BytesIO()
    (value if value.mode in _AS_PNG else value.convert("RGB")).save(buffer, "PNG")
    if len(data := buffer.getvalue()) > _MAX_BYTES:
        raise ValueError(f"an image of {value.width} by {value.height} is larger than {_MAX_BYTES:,} bytes as PNG")
    return ImageContent(base64.b64encode(data).decode(), "image/png")


async def read_media(value: Any, scope: RequestScope) -> list[Any]:
    """Return ``value`` with a content block in place of each `Media` object and pillow image. If ``value`` is a list or
    tuple, its items are replaced.

    A worker thread of the request's caller reads the files. Raises `OSError` and `ValueError`, and the errors of
    `run_in_worker`.
    """
    values = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    threads = scope.runner.workers.share(scope.ticket.caller)
    read = partial(list[Any], map(_read, values))  # the worker thread reads them
    return await run_in_worker(read, threads, lambda: scope.runner.graces, scope.thread_abandoned)
