from __future__ import annotations

import base64
from string import ascii_letters, digits

import msgspec
import pytest

from trio_mcp import Server
from trio_mcp.runtime.peer import PrincipalId
from trio_mcp.server.request_state import BadRequestState, SealedState, StateCipher
from trio_mcp.server.server import share_secret

OLD, NEW = b"o" * 32, b"n" * 40
CONTENT = SealedState(
    b"print", 5.0, PrincipalId("https://login.example.com", "ada"), b"", ["q"], {"q": {"action": "accept"}}, "mine"
)


def test_encrypted_request_state_can_be_decrypted_and_hides_its_content() -> None:
    states = StateCipher("s", [OLD])
    text = states.seal(CONTENT)
    assert states.open(text) == CONTENT
    assert text.isascii()
    assert "mine" not in text
    assert states.seal(CONTENT) != text, "each has a nonce of its own"


def test_request_state_encrypted_by_an_older_version_can_be_decrypted() -> None:
    states = StateCipher("s", [OLD])
    older = msgspec.json.encode(list(msgspec.structs.astuple(CONTENT))[:7])
    sealed = states.keys_for(b"trio-mcp requestState 1 ").seal(older, b"trio-mcp requestState 1 ")
    assert states.open(base64.urlsafe_b64encode(sealed).decode()) == CONTENT


def test_request_state_is_encrypted_with_the_first_secret_and_decrypted_with_any() -> None:
    before, turning, after = StateCipher("s", [OLD]), StateCipher("s", [NEW, OLD]), StateCipher("s", [NEW])
    assert turning.open(before.seal(CONTENT)) == CONTENT
    assert after.open(turning.seal(CONTENT)) == CONTENT
    with pytest.raises(BadRequestState):
        after.open(before.seal(CONTENT))


def test_server_without_secrets_encrypts_request_state_with_the_shared_secret() -> None:
    one, other, own = Server("s"), Server("s"), Server("s", secrets=[OLD])
    for each in (one, other, own):
        share_secret(each, NEW)
    assert other._state_cipher.open(one._state_cipher.seal(CONTENT)) == CONTENT
    with pytest.raises(BadRequestState):
        own._state_cipher.open(one._state_cipher.seal(CONTENT))


def test_request_state_encrypted_without_a_secret_can_be_decrypted_only_in_the_same_process() -> None:
    with pytest.raises(BadRequestState):
        StateCipher("s").open(StateCipher("s").seal(CONTENT))


def test_request_state_cannot_be_decrypted_by_another_server_with_the_same_secret() -> None:
    with pytest.raises(BadRequestState):
        StateCipher("other", [OLD]).open(StateCipher("s", [OLD]).seal(CONTENT))


@pytest.mark.parametrize("text", ["", "A", "AAAA", "!", "ü", "A" * 40, "A" * 5_000_000])
def test_text_that_is_not_an_encrypted_request_state_is_rejected(text: str) -> None:
    with pytest.raises(BadRequestState):
        StateCipher("s", [OLD]).open(text)


@pytest.mark.parametrize("letters", range(3))
def test_encrypted_request_state_has_exactly_one_valid_encoding(letters: int) -> None:
    states = StateCipher("s", [OLD])
    content = msgspec.structs.replace(CONTENT, state="x" * letters)  # with all lengths of padding
    text = states.seal(content)
    while "-" not in text or "_" not in text:
        text = states.seal(content)
    bare = text.rstrip("=")
    others = {
        bare,
        bare + "=",
        bare + "==",
        text + "=",
        text + "====",
        text.replace("-", "+"),
        text.replace("_", "/"),
        text + "\n",
        " " + text,
        text[:40] + "\r\n" + text[40:],
        text[:40] + "=" + text[40:],
        bare + "A" * (len(text) - len(bare)),
        *(bare[:-1] + last + "=" * (len(text) - len(bare)) for last in ascii_letters + digits + "-_"),
    }
    for other in others - {text}:
        with pytest.raises(BadRequestState):
            states.open(other)
    assert states.open(text) == content


def test_encrypted_request_state_with_any_changed_character_is_rejected() -> None:
    states = StateCipher("s", [OLD])
    text = states.seal(CONTENT)
    for place, character in enumerate(text):
        other = "A" if character != "A" else "B"
        with pytest.raises(BadRequestState):
            states.open(text[:place] + other + text[place + 1 :])


def test_server_secret_below_32_bytes_raises_value_error() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes, not 5"):
        Server("s", secrets=[OLD, b"short"])


def test_server_secret_given_as_text_raises_type_error() -> None:
    with pytest.raises(TypeError):
        StateCipher("s", ["x" * 40])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        StateCipher("s", b"x" * 40)  # type: ignore[arg-type]
