"""Images, sounds and files of a result, saved into a folder of the user's."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from pathlib import Path
from typing import Final

from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
)
from .printable import CommandError

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,10}")


def saved(block: ContentBlock, folder: Path, name: str) -> Path | None:
    """Write the data of ``block`` into ``folder`` under ``name``, with a number where that is taken, and a suffix for
    its type; return the path, `None` for a block that is text. Nothing of the server's own names is used. Raises
    `CommandError` where nothing can be written, or the data is no base64."""
    match block:
        case ImageContent(data=data, mime_type=kind) | AudioContent(data=data, mime_type=kind):
            pass
        case EmbeddedResource(resource=BlobResourceContents(blob=data, mime_type=kind)):
            pass
        case _:
            return None
    suffix = mimetypes.guess_extension((kind or "").partition(";")[0].strip()) or ".bin"
    stem = _UNSAFE.sub("_", name)[:100] or "result"
    try:
        content = base64.b64decode(data, validate=True)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = folder / f"{stem}-{number}{suffix if _SUFFIX.fullmatch(suffix) else '.bin'}"
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return path
    except binascii.Error:
        raise CommandError("the server sent data that is no base64") from None
    except OSError as error:
        raise CommandError(f"nothing can be saved in {folder}: {error}") from None
    raise CommandError(f"there are too many files of that name in {folder}")
