from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.jsonrpc.codec import decode_base64url

OTHERS = ["ab+/", "ab/_", "ab c", "ab\n_", "abc", "a", "ab=c", "äöüß", "ab\ud800_", "ab!_"]


@given(st.binary(max_size=200))
def test_base64url_text_is_decoded_with_and_without_padding(data: bytes) -> None:
    text = base64.urlsafe_b64encode(data).decode()
    assert decode_base64url(text) == data
    assert decode_base64url(text.rstrip("="), padded=False) == data


@pytest.mark.parametrize("text", OTHERS)
def test_invalid_base64url_raises_value_error_without_a_warning(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of this or of binascii, by version
        decode_base64url(text)


@pytest.mark.parametrize("text", ["a", "abcde"])
def test_base64url_of_impossible_length_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of binascii
        decode_base64url(text, padded=False)
