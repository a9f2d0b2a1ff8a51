"""Base64 with the URL alphabet (RFC 4648 section 5), decoded strictly.

`base64.urlsafe_b64decode` skips other characters. It also accepts ``+`` and ``/``, for which CPython 3.15 warns.
"""

from __future__ import annotations

import base64
from typing import Final

_OTHER: Final = frozenset("+/")
_STANDARD: Final = str.maketrans("-_", "+/")


def decode_base64url(text: str, *, padded: bool = True) -> bytes:
    """Decode URL-safe base64 ``text``, and return the bytes.

    Raises `ValueError` if ``text`` has a character outside the alphabet, or a wrong length. With ``padded=False``,
    ``text`` has no ``=`` at the end.
    """
    if not _OTHER.isdisjoint(text):
        raise ValueError("URL-safe base64 must not contain + or /")
    if not padded:
        text += "=" * (-len(text) % 4)
    return base64.b64decode(text.translate(_STANDARD), validate=True)
