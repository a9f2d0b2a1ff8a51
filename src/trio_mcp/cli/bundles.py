"""Bundles: the files of a server in one archive, an MCP bundle (github.com/modelcontextprotocol/mcpb), which hosts
install. The same files give the same bytes, whenever and by whomever they are packed.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from ..classes import frozen
from .printable import Unusable, name_shown

MANIFEST: Final = "manifest.json"
ENTRY: Final = "trio_mcp_entry.py"
"""The file that hosts start."""

_NEVER: Final = ("__pycache__", "node_modules", "*.pyc", "*.mcpb")
_SECRETS: Final = (
    *("*.p12", "*.pfx", "*.keystore", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json", "secrets.*"),
)
_KEYS: Final = ("*.pem", "*.key")
_PRIVATE: Final = b"PRIVATE KEY-----"
_MOST_FILES: Final = 20_000
_MOST_BYTES: Final = 256 * 1024 * 1024
_OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file: the first one that archives know."""


@frozen
class BundledFiles:
    """The files below a folder that are packed, by their names in the bundle, in order; and what of the folder is left
    out although it may hold secrets."""

    files: Mapping[str, Path]
    left_out: Sequence[str]


def files_of(folder: Path, output: Path, exclude: Sequence[str]) -> BundledFiles:
    """Return the files of ``folder`` to pack. Hidden files, environments, caches, the folder ``output`` and what fits a
    pattern of ``exclude``, by its name or its path, are left out.

    Raises `Unusable` for a file that looks like a secret, for links that leave the folder or lead to folders, for what
    is no file, and for far too many files or bytes: a bundle goes to strangers.
    """
    root, files, left_out, size = folder.resolve(), dict[str, Path](), list[str](), 0
    for path, name in _walk(root, output.resolve(), exclude, left_out):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise Unusable(f"{name} is a link that leaves the folder: {_MEND}")
        if not path.is_file():
            raise Unusable(f"{name} is no file: {_MEND}")
        if _is_secret(path):
            raise Unusable(f"{name} looks like a secret, and a bundle goes to strangers: {_MEND}")
        files[name] = path
        size += path.stat().st_size
        if len(files) > _MOST_FILES or size > _MOST_BYTES:
            raise Unusable(f"{folder} has more than {_MOST_FILES} files or {_MOST_BYTES} bytes: choose with --folder")
    for name in (MANIFEST, ENTRY):
        if name in files:
            raise Unusable(f"{name} is made for the bundle: {_MEND}")
    return BundledFiles(dict(sorted(files.items())), left_out)


_MEND: Final = "move it away, or leave it out with --exclude"


def _walk(root: Path, output: Path, exclude: Sequence[str], left_out: list[str]) -> Iterator[tuple[Path, str]]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        kept: list[str] = []
        for name in folders:
            path = here / name
            inside = path.relative_to(root).as_posix()
            if _is_left_out(name, inside, exclude) or path == output or (path / "pyvenv.cfg").exists():
                continue
            if path.is_symlink():
                raise Unusable(f"{inside} is a link to a folder: {_MEND}")
            kept.append(name)
        folders[:] = kept
        for name in names:
            path = here / name
            inside = path.relative_to(root).as_posix()
            if fnmatch(name.lower(), ".env*"):
                left_out.append(inside)
            # What this command has written here before is no part of the next bundle.
            elif not _is_left_out(name, inside, exclude) and inside != "server.json":
                yield path, inside


def _is_left_out(name: str, inside: str, exclude: Sequence[str]) -> bool:
    if name.startswith("."):
        return True
    return any(fnmatch(each, pattern) for pattern in (*_NEVER, *exclude) for each in (name, inside))


def _is_secret(path: Path) -> bool:
    name = path.name.lower()
    if any(fnmatch(name, pattern) for pattern in _SECRETS):
        return True
    if not any(fnmatch(name, pattern) for pattern in _KEYS):
        return False
    with path.open("rb") as file:
        return _PRIVATE in file.read(1024 * 1024)


def entry_file(file: str, name: str) -> str:
    """Return the text of `ENTRY`, which serves ``file``, a path in the bundle, or its variable ``name``."""
    suffix = f":{name}" if name else ""
    return f'''"""Serves over standard input and output, as `trio-mcp run` does."""

import sys
from pathlib import Path

from trio_mcp.cli.main import main

sys.argv[:] = ["trio-mcp", "run", str(Path(__file__).parent / {file!r}) + {suffix!r}]
main()
'''


def written(document: Mapping[str, Any]) -> bytes:
    """Return ``document`` as JSON for people."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def zipped(files: Mapping[str, Path], made: Mapping[str, bytes]) -> bytes:
    """Return the archive of ``files`` and of what is ``made`` for it, by their names, in order, without times and
    owners. A file that its owner may run can be run. Raises `OSError`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted({*files, *made}):
            path = files.get(name)
            info = zipfile.ZipInfo(_encodable(name), _OLDEST)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            runs = path is not None and path.stat().st_mode & stat.S_IXUSR
            info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            archive.writestr(info, made[name] if path is None else path.read_bytes())
    return buffer.getvalue()


def _encodable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Unusable(f"{name_shown(name)} is no name in UTF-8: {_MEND}") from None
    return name
