"""KeptFile: change a file that belongs to another program, without losing its contents."""

from __future__ import annotations

import os
import stat
import tempfile
from itertools import count
from pathlib import Path
from typing import Final

import attrs

_BOM: Final = "\ufeff"
_PRIVATE: Final = 0o600
"""The mode of new files, since entries hold keys."""


class CannotChange(Exception):
    """The file is left unchanged. The message is one line for the user."""


@attrs.frozen
class KeptFile:
    """A text file as last read. Symbolic links in ``path`` are resolved."""

    path: Path
    data: bytes | None
    """The bytes of the file; `None` when there was no file."""

    @classmethod
    def read(cls, path: Path) -> KeptFile:
        """Read the file. Raises `CannotChange` for an existing file that cannot be read or is not a regular file, and
        for a file in a directory behind a dangling link: the directory, a disk for example, is missing."""
        real = Path(os.path.realpath(path))
        for place in (path := path.absolute(), *path.parents):
            # A link to a file that does not exist yet is fine where its directory exists.
            if place.is_symlink() and not (place.exists() or (place == path and real.parent.exists())):
                raise CannotChange(f"{place} is a link to {os.readlink(place)}, which is not there")
        try:
            return cls(real, _content(real))
        except FileNotFoundError:
            return cls(real, None)
        except OSError as error:
            raise CannotChange(f"{real} cannot be read: {error.strerror}") from None

    @property
    def text(self) -> str:
        """The text of the file, without a byte order mark. Raises `CannotChange` for bytes that are no UTF-8."""
        try:
            return (self.data or b"").decode("utf-8").removeprefix(_BOM)
        except UnicodeDecodeError as error:
            raise CannotChange(f"{self.path} is no UTF-8 at byte {error.start}") from None

    def write(self, text: str) -> Path | None:
        """Replace the file's text atomically, and return the path of the copy of the old file; `None` when there was
        none.

        Permissions are preserved. Missing directories are made. Raises `CannotChange`, also when the file was changed
        since reading; the file is then left unchanged.
        """
        mark = _BOM if self.data is not None and self.data.startswith(_BOM.encode()) else ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if KeptFile.read(self.path).data != self.data:
                raise CannotChange(f"{self.path} was changed by somebody else meanwhile; try again")
            mode = _PRIVATE if self.data is None else stat.S_IMODE(self.path.stat().st_mode)
            backup = None if self.data is None else self._backed_up(self.data, mode)
            self._replace((mark + text).encode(), mode)
        except OSError as error:
            raise CannotChange(f"{self.path} cannot be written: {error.strerror}") from None
        return backup

    def _backed_up(self, data: bytes, mode: int) -> Path:
        """Copy the old file under a free name in the same directory, and return the copy's path."""
        for number in count():
            backup = self.path.with_name(f"{self.path.name}.bak{number or ''}")
            try:
                descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            except FileExistsError:
                continue
            _fill(descriptor, data, mode)
            return backup
        raise AssertionError("unreachable: numbers do not end")

    def _replace(self, data: bytes, mode: int) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            _fill(descriptor, data, mode)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def _content(path: Path) -> bytes:
    """Return the bytes of the file, without waiting: a pipe has no end as long as somebody may write to it."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CannotChange(f"{path} is no regular file")
        return file.read()


def _fill(descriptor: int, data: bytes, mode: int) -> None:
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
