"""`SealingKey`: encrypts bytes that are stored elsewhere. Only a process with the same secret can read or change
them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_MIN_SECRET_BYTES: Final = 32
_NONCE: Final = 12


class BadSeal(ValueError):
    """Raised for encrypted bytes that were modified, are for another purpose, or have another key."""


def check_secrets(shared: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the secrets unchanged if they are valid. Raises `ValueError` for a secret of less than 32 bytes, and
    `TypeError` for `str` or a single `bytes`."""
    for secret in shared:
        # A secret from an environment variable is a str; and a single bytes object is a sequence of integers.
        if isinstance(secret, (str, int)):
            raise TypeError("secrets must be a list of bytes: secrets=[bytes.fromhex(os.environ['SECRET'])]")
        size = memoryview(secret).nbytes
        if size < _MIN_SECRET_BYTES:
            raise ValueError(f"a secret must have at least {_MIN_SECRET_BYTES} bytes, not {size}")
    return tuple(shared)


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes, derived for one ``purpose`` (HKDF with SHA-256)."""
    # Lazy import, here and below: most servers never need the cipher, and its import would double their start time.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=None, info=purpose).derive(secret)


class SealingKey:
    """Encrypts and decrypts bytes with AES-256-GCM, under the key derived from ``secret`` for ``purpose``."""

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(derived_key(secret, purpose))

    def seal(self, content: bytes, about: bytes) -> bytes:
        """Return ``content`` encrypted. ``about`` isn't included, and must be passed again to decrypt."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, content, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Return the decrypted content. Raises `BadSeal` if it can't be decrypted."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], about)
        except (InvalidTag, ValueError):
            raise BadSeal("modified, or encrypted with another key") from None


class KeyRing:
    """Encryption keys for one purpose. The first key encrypts, and all keys decrypt, so that secrets can be replaced
    one by one."""

    def __init__(self, secrets: Sequence[bytes], purpose: bytes) -> None:
        self._keys = [SealingKey(secret, purpose) for secret in secrets]

    def seal(self, content: bytes, about: bytes) -> bytes:
        """Return ``content`` encrypted with the first key. See `SealingKey.seal`."""
        return self._keys[0].seal(content, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Return the content, decrypted with whichever key fits. Raises `BadSeal` if no key fits."""
        for key in self._keys:
            with suppress(BadSeal):
                return key.open(sealed, about)
        raise BadSeal("modified, or encrypted with none of the keys")
