"""Encrypted data can be read and changed only with the secret."""

from __future__ import annotations

import pytest

from trio_mcp.stores.sealing import BadSeal, SealingKey, check_secrets, derived_key

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))


def test_encryption_key_decrypts_the_content_that_it_encrypted():
    sealed = SealingKey(SECRET, b"p").seal(b"content", b"about")
    assert b"content" not in sealed
    assert SealingKey(SECRET, b"p").open(sealed, b"about") == b"content"


@pytest.mark.parametrize(
    ("secret", "purpose", "about"), [(OTHER, b"p", b"about"), (SECRET, b"q", b"about"), (SECRET, b"p", b"else")]
)
def test_decryption_with_a_different_secret_purpose_or_subject_raises_bad_seal(
    secret: bytes, purpose: bytes, about: bytes
):
    sealed = SealingKey(SECRET, b"p").seal(b"content", b"about")
    with pytest.raises(BadSeal):
        SealingKey(secret, purpose).open(sealed, about)


def test_modified_or_truncated_encrypted_bytes_are_refused():
    key = SealingKey(SECRET, b"p")
    sealed = key.seal(b"content", b"")
    for place in range(len(sealed)):
        with pytest.raises(BadSeal):
            key.open(sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], b"")
        with pytest.raises(BadSeal):
            key.open(sealed[:place], b"")


def test_content_encrypted_twice_gives_different_bytes():
    key = SealingKey(SECRET, b"p")
    assert key.seal(b"content", b"") != key.seal(b"content", b"")


def test_derived_encryption_keys_differ_by_purpose():
    assert derived_key(SECRET, b"p") != derived_key(SECRET, b"q")


def test_encryption_secret_below_32_bytes_raises_value_error():
    assert check_secrets([SECRET, bytes(32)]) == (SECRET, bytes(32))
    with pytest.raises(ValueError, match="at least 32 bytes, not 31"):
        check_secrets([SECRET, bytes(31)])
    with pytest.raises(TypeError):
        check_secrets(["x" * 32])  # type: ignore[list-item]
