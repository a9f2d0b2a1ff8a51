"""`SealingKey`: encrypts data for storage, so that only processes with the same secret can read or change it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_MIN_SECRET_BYTES: Final = 32
_NONCE: Final = 12


class BadSeal(ValueError):
    """Raised if encrypted bytes were modified, or were encrypted for another purpose or with another key."""


def check_secrets(shared: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return ``secrets`` if all of them are valid.

    Raises `ValueError` if a secret has less than 32 bytes, and `TypeError` if ``secrets`` is a single `bytes`, or a
    secret is a `str`.
    """
    for secret in shared:
        # Authors often pass a str from an environment variable, or a single bytes object, so detect these two mistakes.
        if isinstance(secret, (str, int)):
            raise TypeError("secrets must be a list of bytes, such as secrets=[bytes.fromhex(os.environ['SECRET'])]")
        size = memoryview(secret).nbytes
        if size < _MIN_SECRET_BYTES:
            raise ValueError(f"a secret must have at least {_MIN_SECRET_BYTES} bytes, not {size}")
    return tuple(shared)


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Derive a key of 32 bytes for one ``purpose`` from ``secret`` (HKDF with SHA-256)."""
    # Import the cipher late, here and below, because its import doubles the start time and few servers use it.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=None, info=purpose).derive(secret)


class SealingKey:
    """Encrypts and decrypts bytes with AES-256-GCM. The key is derived from ``secret`` for ``purpose``."""

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(derived_key(secret, purpose))

    def seal(self, content: bytes, about: bytes) -> bytes:
        """Encrypt ``content``. To decrypt the result, pass the same bytes ``about`` to `open`.

        The bytes ``about`` are authenticated, but aren't part of the result.
        """
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, content, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt ``sealed``, the result of `seal`, with the bytes ``about`` that were passed to `seal`. Raises
        `BadSeal` if that fails."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], about)
        except (InvalidTag, ValueError):
            raise BadSeal("cannot decrypt the data: it was modified, or encrypted with another key") from None


class KeyRing:
    """Encryption keys for one purpose. The first key encrypts. All keys decrypt, so that secrets can be rotated."""

    def __init__(self, secrets: Sequence[bytes], purpose: bytes) -> None:
        self._keys = [SealingKey(secret, purpose) for secret in secrets]

    def seal(self, content: bytes, about: bytes) -> bytes:
        """Encrypt ``content`` with the first key. See `SealingKey.seal`."""
        return self._keys[0].seal(content, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt bytes that one of the keys has encrypted. Raises `BadSeal` if no key can decrypt them."""
        for key in self._keys:
            with suppress(BadSeal):
                return key.open(sealed, about)
        raise BadSeal("cannot decrypt the data: it was modified, or encrypted with an unknown key")
