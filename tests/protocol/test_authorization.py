"""OAuth documents: which members are read, and that malformed bytes do no harm."""

from __future__ import annotations

import json
import random
import traceback
from contextlib import suppress
from typing import Any, Final, TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.protocol.authorization import (
    ClientInformation,
    ClientMetadata,
    InvalidDocument,
    OAuthErrorResponse,
    ResourceMetadata,
    ServerMetadata,
    TokenResponse,
)

Kind: TypeAlias = type[
    ClientInformation | ClientMetadata | OAuthErrorResponse | ResourceMetadata | ServerMetadata | TokenResponse
]

WHOLE: Final[dict[Kind, dict[str, Any]]] = {
    ResourceMetadata: {
        "resource": "https://mcp.example.com/mcp",
        "authorization_servers": ["https://as.example", "https://other.example/tenant"],
        "scopes_supported": ["files:read", "files:write"],
        "resource_name": "Files",
        "resource_documentation": "https://example.com/docs",
        "dpop_signing_alg_values_supported": ["ES256"],
        "dpop_bound_access_tokens_required": True,
    },
    ServerMetadata: {
        "issuer": "https://as.example/tenant",
        "authorization_endpoint": "https://as.example/authorize",
        "token_endpoint": "https://as.example/token",
        "registration_endpoint": "https://as.example/register",
        "revocation_endpoint": "https://as.example/revoke",
        "introspection_endpoint": "https://as.example/introspect",
        "jwks_uri": "https://as.example/jwks",
        "scopes_supported": ["openid", "offline_access"],
        "response_types_supported": ["code"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"],
        "token_endpoint_auth_signing_alg_values_supported": ["ES256"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "introspection_endpoint_auth_methods_supported": ["client_secret_basic"],
        "client_id_metadata_document_supported": True,
        "authorization_response_iss_parameter_supported": False,
        "dpop_signing_alg_values_supported": ["ES256"],
    },
    ClientMetadata: {
        "client_id": "https://client.example/metadata.json",
        "client_name": "Files",
        "client_uri": "https://client.example",
        "redirect_uris": ["http://127.0.0.1:1234/callback"],
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "scope": "a b",
        "software_id": "trio-mcp",
        "software_version": "1",
    },
    ClientInformation: {
        "client_id": "s6BhdRkqt3",
        "client_secret": "cf136dc3c1fc93f31185e5885805d",
        "client_secret_expires_at": 1577858400,
        "token_endpoint_auth_method": "client_secret_basic",
        "redirect_uris": ["http://127.0.0.1/"],
        "grant_types": ["authorization_code", "refresh_token"],
        "scope": "a b",
    },
    TokenResponse: {
        "access_token": "2YotnFZFEjr1zCsicMWpAA",
        "token_type": "Bearer",
        "expires_in": 3600.0,
        "refresh_token": "tGzv3JOkF0XG5Qx2TlKWIA",
        "scope": "a b",
        "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
    },
    OAuthErrorResponse: {"error": "invalid_grant", "error_description": "the code was used before"},
}
NEEDED: Final[dict[Kind, set[str]]] = {
    ResourceMetadata: {"resource"},
    ServerMetadata: {"issuer"},
    ClientMetadata: set(),
    ClientInformation: {"client_id"},
    TokenResponse: {"access_token"},
    OAuthErrorResponse: {"error"},
}
kinds = pytest.mark.parametrize("kind", WHOLE)
members = pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in WHOLE for name in WHOLE[kind]])


def text_of(document: object) -> bytes:
    return json.dumps(document).encode()


def values_of(read: Any) -> dict[str, Any]:
    return json.loads(json.dumps(attrs.asdict(read)))


def refused_as(kind: Kind, data: bytes) -> InvalidDocument | None:
    try:
        kind.from_json(data)
    except InvalidDocument as error:
        return error
    return None


def refusal(kind: Kind, data: bytes) -> str:
    with pytest.raises(InvalidDocument) as invalid:
        kind.from_json(data)
    error = invalid.value
    assert error.__cause__ is None
    assert error.__context__ is None, "which would have the bytes"
    return str(error)


@kinds
def test_every_known_field_of_an_oauth_document_is_read(kind: Kind) -> None:
    assert values_of(kind.from_json(text_of(WHOLE[kind]))) == WHOLE[kind]
    assert set(WHOLE[kind]) == {field.name for field in attrs.fields(kind)}


@kinds
def test_unknown_fields_of_an_oauth_document_are_ignored(kind: Kind) -> None:
    others = {"x": [{"y": None}], "jwks": {"keys": []}, "signed_metadata": 1, "tls_client_certificate": "x"}
    assert kind.from_json(text_of({**WHOLE[kind], **others})) == kind.from_json(text_of(WHOLE[kind]))


@members
def test_optional_field_of_an_oauth_document_can_be_absent_or_null(kind: Kind, name: str) -> None:
    without = text_of({key: value for key, value in WHOLE[kind].items() if key != name})
    null = text_of({**WHOLE[kind], name: None})
    if name in NEEDED[kind]:
        assert f"missing required field `{name}`" in refusal(kind, without)
        assert f"$.{name}" in refusal(kind, null)
    else:
        default = attrs.fields_dict(kind)[name].default
        assert getattr(kind.from_json(without), name) == default
        assert getattr(kind.from_json(null), name) == default


NEVER_ABSENT: Final = {
    "authorization_servers",
    "authorization_response_iss_parameter_supported",
    "code_challenge_methods_supported",
}


@members
def test_optional_field_of_an_oauth_document_with_a_wrong_type_is_treated_as_absent(kind: Kind, name: str) -> None:
    for wrong in ({"a": "b"}, [7], [None], [[]], {}, [], "", "nan", 1e300, 10**400):
        data = text_of({**WHOLE[kind], name: wrong})
        match WHOLE[kind][name], wrong:
            case (str(), str()) | (list(), []) | (list(), "nan") | (float() | int(), float()):
                continue
            case _ if name in NEEDED[kind] | NEVER_ABSENT:
                assert f"$.{name}" in refusal(kind, data)
            case _:
                whole = {key: value for key, value in WHOLE[kind].items() if key != name}
                assert kind.from_json(data) == kind.from_json(text_of(whole))


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "read"),
    [
        (ResourceMetadata, "scopes_supported", "a b", ("a", "b")),
        (ResourceMetadata, "scopes_supported", ["a", None, 7, "b"], ("a", "b")),
        (ResourceMetadata, "authorization_servers", "https://as.example", ("https://as.example",)),
        (ServerMetadata, "response_types_supported", ["code", None], ("code",)),
        (ServerMetadata, "code_challenge_methods_supported", "S256", ("S256",)),
        (ServerMetadata, "client_id_metadata_document_supported", "true", True),
        (ServerMetadata, "client_id_metadata_document_supported", "yes", None),
        (ServerMetadata, "authorization_response_iss_parameter_supported", "true", True),
        (ServerMetadata, "authorization_response_iss_parameter_supported", "False", False),
        (ServerMetadata, "authorization_response_iss_parameter_supported", 1, True),
        (ClientInformation, "scope", ["a", "b"], "a b"),
        (ClientInformation, "redirect_uris", "http://127.0.0.1/", ("http://127.0.0.1/",)),
        (ClientInformation, "client_secret_expires_at", "", None),
        (ClientInformation, "client_id", 1234567890123456789012, "1234567890123456789012"),
        (ClientInformation, "client_secret", 7, "7"),
        (ClientInformation, "client_secret", 7.5, None),
        (ClientInformation, "client_secret", -7, None),
        (TokenResponse, "scope", ["a", None, "b"], "a b"),
        (TokenResponse, "expires_in", "3600", 3600.0),
        (TokenResponse, "expires_in", "1 hour", None),
        (TokenResponse, "token_type", None, "Bearer"),
    ],
)
def test_field_of_an_oauth_document_with_a_convertible_type_is_converted(
    kind: Kind, name: str, wrong: Any, read: Any
) -> None:
    assert getattr(kind.from_json(text_of({**WHOLE[kind], name: wrong})), name) == read


@pytest.mark.parametrize(
    "answer",
    [
        {"code": 0, "msg": "ok", "data": {**WHOLE[TokenResponse], "expires_in": "3600"}},
        {"ok": True, "team": {"id": "T1"}, "authed_user": {"id": "U1", **WHOLE[TokenResponse]}},
        {"token_type": "mac", "data": WHOLE[TokenResponse]},
    ],
)
def test_token_response_with_the_token_in_a_nested_object_is_read(answer: Any) -> None:
    assert TokenResponse.from_json(text_of(answer)) == TokenResponse.from_json(text_of(WHOLE[TokenResponse]))


@pytest.mark.parametrize(
    "answer",
    [
        {"data": None},
        {"data": {"data": {"access_token": "t"}}},
        {"data": [{"access_token": "t"}]},
        {"data": {"access_token": "t"}, "user": {"access_token": "u"}},
        {"access_token": None, "data": {"access_token": "t"}},
    ],
)
def test_token_response_with_no_or_several_tokens_is_refused(answer: Any) -> None:
    assert "access_token" in refusal(TokenResponse, text_of(answer))


@pytest.mark.parametrize("value", ["yes", "", [], ["true"], 7, {}])
def test_oauth_metadata_with_a_malformed_iss_parameter_supported_flag_is_refused(value: object) -> None:
    name = "authorization_response_iss_parameter_supported"
    assert f"$.{name}" in refusal(ServerMetadata, text_of({**WHOLE[ServerMetadata], name: value}))


@members
def test_field_of_an_oauth_document_beyond_its_size_limit_is_dropped_or_refused(kind: Kind, name: str) -> None:
    match WHOLE[kind][name]:
        case list():
            fits, long = ["x"] * 1000, ["x"] * 1001
        case str():
            most = {"error": 200, "access_token": 32768, "refresh_token": 32768, "client_secret": 32768}.get(name, 4096)
            fits, long = "x" * most, "x" * (most + 1)
        case _:
            return
    assert values_of(kind.from_json(text_of({**WHOLE[kind], name: fits})))[name] == fits
    if name in NEEDED[kind] | NEVER_ABSENT:
        assert f"$.{name}" in refusal(kind, text_of({**WHOLE[kind], name: long}))
    else:
        read = getattr(kind.from_json(text_of({**WHOLE[kind], name: long})), name)
        assert read == attrs.fields_dict(kind)[name].default


@kinds
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b'"text"', b"7", b"<!doctype html>", b"{}{}", b"{'a': 1}"),
        b"\xef\xbb\xbf" * 2 + b"{}",
        *(b'{"issuer": NaN}', b'{"a": \xff}', b'{"a": "\\ud800"}', b"\0"),
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b'{"a": ' * 40_000,
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_oauth_document_that_is_not_a_json_object_is_refused(kind: Kind, data: bytes) -> None:
    assert refusal(kind, data).startswith("invalid ")


@kinds
def test_oauth_document_after_a_byte_order_mark_is_read(kind: Kind) -> None:
    whole = text_of(WHOLE[kind])
    assert kind.from_json(b"\xef\xbb\xbf" + whole) == kind.from_json(whole)


@kinds
def test_oauth_document_larger_than_256_kib_is_refused(kind: Kind) -> None:
    whole = text_of(WHOLE[kind])
    assert kind.from_json(whole.ljust(256 * 1024)) == kind.from_json(whole)
    assert refusal(kind, whole.ljust(256 * 1024 + 1)).endswith("longer than 262144 bytes")


# Seconds


@pytest.mark.parametrize("seconds", [3600, 3600.0, "3600", "3.6e3"])
def test_oauth_lifetime_can_be_a_numeric_string(seconds: object) -> None:
    token = TokenResponse.from_json(text_of({**WHOLE[TokenResponse], "expires_in": seconds}))
    assert token.expires_in == 3600.0
    client = ClientInformation.from_json(text_of({"client_id": "x", "client_secret_expires_at": seconds}))
    assert client.client_secret_expires_at == 3600.0


@pytest.mark.parametrize("seconds", ["soon", "nan", "inf", "-inf", "1e999", "", " 1", "true", True, [1], {}])
def test_oauth_lifetime_that_is_not_a_number_is_treated_as_absent(seconds: object) -> None:
    token = TokenResponse.from_json(text_of({**WHOLE[TokenResponse], "expires_in": seconds}))
    client = ClientInformation.from_json(text_of({"client_id": "x", "client_secret_expires_at": seconds}))
    assert (token.expires_in, client.client_secret_expires_at) == (None, None)


@pytest.mark.parametrize("seconds", [b"1e999", b"1" + b"0" * 5000])
def test_oauth_lifetime_out_of_range_is_treated_as_absent(seconds: bytes) -> None:
    token = TokenResponse.from_json(b'{"access_token": "x", "token_type": "Bearer", "expires_in": %s}' % seconds)
    assert token.expires_in is None


# Errors


@pytest.mark.parametrize("code", ["", "a\nb", 'a"b', "a\\b", "é", "a\n", "\x7f"])
def test_oauth_error_code_with_invalid_characters_is_refused(code: str) -> None:
    refusal(OAuthErrorResponse, text_of({"error": code}))


# Secrets


@pytest.mark.parametrize(
    ("kind", "secrets"),
    [
        (TokenResponse, ["2YotnFZFEjr1zCsicMWpAA", "tGzv3JOkF0XG5Qx2TlKWIA"]),
        (ClientInformation, ["cf136dc3c1fc93f31185e5885805d"]),
        (OAuthErrorResponse, ["the code was used before"]),
    ],
)
def test_repr_of_an_oauth_document_contains_no_secrets(kind: Kind, secrets: list[str]) -> None:
    shown = repr(kind.from_json(text_of(WHOLE[kind])))
    assert not [secret for secret in secrets if secret in shown]


@members
def test_error_for_a_refused_oauth_document_contains_none_of_its_values(kind: Kind, name: str) -> None:
    for wrong in (["geheim", 7], {"geheim": "geheim"}, "geheim" * 50_000, "geh\0eim", [["geheim"]]):
        document = {**WHOLE[kind], name: wrong}
        for data in (text_of(document), text_of(document)[:-5], text_of(document) + b"geheim", b"\xffgeheim"):
            told = "".join(traceback.format_exception(refused_as(kind, data)))
            assert "geheim" not in told


# What is written


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.lists(st.text(max_size=9), max_size=4).map(tuple)
            if isinstance(value, list)
            else st.text(max_size=9)
            for name, value in WHOLE[ClientMetadata].items()
        },
    )
)
def test_oauth_client_metadata_can_be_read_again_after_it_is_written(given_members: dict[str, Any]) -> None:
    client = ClientMetadata(**given_members)
    assert ClientMetadata.from_json(client.to_json()) == client
    assert set(json.loads(client.to_json())) == set(given_members)


# Fuzz


def test_mutated_oauth_documents_raise_no_unexpected_exception() -> None:
    chance = random.Random(13)
    pieces = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e9", b"-", b"\xff", b"\\u", b"true", b"[[[["]
    seeds = [(kind, text_of(WHOLE[kind])) for kind in WHOLE]
    outcomes = {True: 0, False: 0}
    for _ in range(examples(100_000)):
        kind, seed = chance.choice(seeds)
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 1, 4, 30))] = chance.choice(
                (*pieces, bytes([chance.randrange(256)]), b"x", b" ")
            )
        try:
            outcomes[isinstance(kind.from_json(bytes(data)), kind)] += 1
        except InvalidDocument:
            outcomes[False] += 1
    assert min(outcomes.values()) > examples(5_000), "both sides were seen"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@kinds
@given(data=st.data())
def test_oauth_documents_with_random_values_raise_no_unexpected_exception(kind: Kind, data: st.DataObject) -> None:
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(WHOLE[kind])), anything, max_size=3))
    with suppress(InvalidDocument):
        assert isinstance(kind.from_json(text_of({**WHOLE[kind], **changed})), kind)


@kinds
@given(data=st.binary())
def test_random_bytes_read_as_an_oauth_document_raise_no_unexpected_exception(kind: Kind, data: bytes) -> None:
    with suppress(InvalidDocument):
        kind.from_json(data)
