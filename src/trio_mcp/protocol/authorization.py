"""Documents of authorization: what servers publish, are sent and answer, as far as anybody here reads them.

The law of this file: **any bytes in give an object or one `InvalidDocument`**. Unknown members are skipped. The others
are bounded. If an optional member has the wrong type, it is read leniently, or else counts as absent. What a URL or a
name means is for others to check.
"""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, cast, get_type_hints

import attrs
import msgspec
from msgspec import Meta

from ..classes import frozen
from ..jsonrpc.codec import check_levels

_LONGEST: Final = 256 * 1024
_LONGEST_NUMBER: Final = 64

_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Texts: TypeAlias = Annotated[tuple[_Text, ...], Meta(max_length=1000)]
_Token: TypeAlias = Annotated[str, Meta(max_length=32 * 1024)]
_Code: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\A[\x20\x21\x23-\x5b\x5d-\x7e]*\Z")]
"""RFC 6749 appendix A.7."""


class InvalidDocument(ValueError):
    """The bytes are no such document. The text says why, and has nothing of the values in the document."""


class _Document:
    """What the documents share."""

    __slots__ = ()

    _COMPLAINT: ClassVar[str]
    """What is wrong with bytes that are no such document."""
    _NEVER_ABSENT: ClassVar[frozenset[str]] = frozenset()
    """Optional members whose absence would be less strict, or misleading, if their value can't be read."""

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the document. Raises `InvalidDocument`."""
        if len(data) > _LONGEST:
            raise InvalidDocument(f"{cls._COMPLAINT}: more than {_LONGEST} bytes")
        data = data.removeprefix(BOM_UTF8)
        try:
            try:
                document = msgspec.json.decode(data, type=cls)
            except msgspec.ValidationError:
                document = cls._read_leniently(msgspec.json.decode(data, type=dict[str, msgspec.Raw]))
            check_levels(data)
            return document
        except msgspec.ValidationError as error:
            reason = str(error)  # which member it is, and what was expected
        except RecursionError:
            reason = "nested too deeply"
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = "no JSON in UTF-8"
        raise InvalidDocument(f"{cls._COMPLAINT}: {reason}")

    @classmethod
    def _read_leniently(cls, members: dict[str, msgspec.Raw]) -> Self:
        """Read each member alone: many servers write texts for numbers and lists, lists for texts, or null in lists."""
        members = cls._usual(members)
        optional = [name for name, field in attrs.fields_dict(cls).items() if field.default is not attrs.NOTHING]
        required = {name: value for name, value in members.items() if name not in optional}
        document = msgspec.json.decode(msgspec.json.encode(required), type=cls)
        kinds = get_type_hints(cls, include_extras=True)
        for name in filter(members.__contains__, optional):
            try:
                document = attrs.evolve(document, **{name: _read_member(members[name], kinds[name])})
            except (msgspec.ValidationError, ValueError):
                if name in cls._NEVER_ABSENT:
                    raise msgspec.ValidationError(f"a value of another type - at `$.{name}`") from None
        return document

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the members of a document of an unusual shape in the usual one."""
        return members


def _read_member(member: msgspec.Raw, kind: Any) -> Any:
    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(member, type=kind, strict=False)
    value: object = msgspec.json.decode(member)
    listed = cast("list[object]", value) if isinstance(value, list) else str(value).split()
    words = [word for word in listed if isinstance(word, str)]
    if not words or not isinstance(value, list | str):
        raise ValueError("neither a text nor a list of texts")
    with suppress(msgspec.ValidationError):
        return msgspec.convert(words, kind)
    return msgspec.convert(" ".join(words), kind)


def _finite(_: Any, field: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{field.name} is no number of seconds")


@frozen(kw_only=True)
class ResourceMetadata(_Document):
    """What a protected resource says about itself (RFC 9728 section 2)."""

    _COMPLAINT: ClassVar = "no metadata of a protected resource"
    _NEVER_ABSENT: ClassVar = frozenset(("authorization_servers",))

    resource: _Text
    authorization_servers: _Texts | None = None
    scopes_supported: _Texts | None = None
    resource_name: _Text | None = None
    resource_documentation: _Text | None = None
    dpop_signing_alg_values_supported: _Texts | None = None
    dpop_bound_access_tokens_required: bool | None = None


@frozen(kw_only=True)
class ServerMetadata(_Document):
    """What an authorization server says about itself (RFC 8414 section 2; OpenID Connect Discovery section 3)."""

    _COMPLAINT: ClassVar = "no metadata of an authorization server"
    _NEVER_ABSENT: ClassVar = frozenset(
        ("authorization_response_iss_parameter_supported", "code_challenge_methods_supported")
    )

    issuer: _Text
    authorization_endpoint: _Text | None = None
    token_endpoint: _Text | None = None
    registration_endpoint: _Text | None = None
    revocation_endpoint: _Text | None = None
    introspection_endpoint: _Text | None = None
    jwks_uri: _Text | None = None
    scopes_supported: _Texts | None = None
    response_types_supported: _Texts | None = None
    grant_types_supported: _Texts | None = None
    code_challenge_methods_supported: _Texts | None = None
    """RFC 7636; without ``S256`` a client must not go on (2026-07-28 authorization, Authorization Code Protection)."""
    token_endpoint_auth_methods_supported: _Texts | None = None
    token_endpoint_auth_signing_alg_values_supported: _Texts | None = None
    revocation_endpoint_auth_methods_supported: _Texts | None = None
    introspection_endpoint_auth_methods_supported: _Texts | None = None
    client_id_metadata_document_supported: bool | None = None
    """2026-07-28 client registration, Client ID Metadata Documents."""
    authorization_response_iss_parameter_supported: bool | None = None
    """RFC 9207 section 3."""
    dpop_signing_alg_values_supported: _Texts | None = None
    """RFC 9449 section 5.1."""


@frozen(kw_only=True)
class ClientMetadata(_Document):
    """What a client says about itself, to register, or in a document that its id is the URL of (RFC 7591 section 2;
    OpenID Connect Registration section 2)."""

    _COMPLAINT: ClassVar = "no metadata of a client"

    client_id: _Text | None = None
    """The URL of the document, in a document (2026-07-28 client registration, Client ID Metadata Documents)."""
    client_name: _Text | None = None
    client_uri: _Text | None = None
    redirect_uris: _Texts | None = None
    grant_types: _Texts | None = None
    response_types: _Texts | None = None
    token_endpoint_auth_method: _Text | None = None
    application_type: _Text | None = None
    """``native`` or ``web``."""
    scope: _Text | None = None
    software_id: _Text | None = None
    software_version: _Text | None = None

    def to_json(self) -> bytes:
        """Return the document, without the members that are `None`."""
        members = attrs.asdict(self, recurse=False)
        return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


@frozen(kw_only=True)
class ClientInformation(_Document):
    """The answer to a registration (RFC 7591 section 3.2.1)."""

    _COMPLAINT: ClassVar = "no answer to a registration"

    client_id: _Text
    client_secret: _Token | None = attrs.field(default=None, repr=False)
    client_secret_expires_at: float | None = attrs.field(default=None, validator=_finite)
    """Time in seconds since the epoch; 0: never."""
    token_endpoint_auth_method: _Text | None = None
    redirect_uris: _Texts | None = None
    grant_types: _Texts | None = None
    scope: _Text | None = None

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Some servers write the id, or the secret, as an integer."""
        texts = {name: bytes(members[name]) for name in ("client_id", "client_secret") if name in members}
        integers = {name: text for name, text in texts.items() if text.isdigit() and len(text) <= _LONGEST_NUMBER}
        return {**members, **{name: msgspec.Raw(b'"%b"' % text) for name, text in integers.items()}}


@frozen(kw_only=True)
class TokenResponse(_Document):
    """The answer of a token endpoint that has granted something (RFC 6749 section 5.1; RFC 8693 section 2.2.1)."""

    _COMPLAINT: ClassVar = "no answer of a token endpoint"

    access_token: _Token = attrs.field(repr=False)
    token_type: _Text = "Bearer"  # noqa: S105 -- no secret
    expires_in: float | None = attrs.field(default=None, validator=_finite)
    """Seconds."""
    refresh_token: _Token | None = attrs.field(default=None, repr=False)
    scope: _Text | None = None
    issued_token_type: _Text | None = None
    """The kind of a token that was exchanged."""

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Some servers wrap the members, as in ``{"code": 0, "data": {"access_token": ...}}``."""
        if "access_token" in members:
            return members
        objects = [each for each in members.values() if bytes(each).startswith(b"{")]
        inner = [msgspec.json.decode(each, type=dict[str, msgspec.Raw]) for each in objects]
        wrapped = [each for each in inner if "access_token" in each]
        return wrapped[0] if len(wrapped) == 1 else members


@frozen(kw_only=True)
class OAuthErrorResponse(_Document):
    """The answer of a token endpoint, or to a registration, that has refused (RFC 6749 section 5.2; RFC 7591 section
    3.2.2)."""

    _COMPLAINT: ClassVar = "no error of OAuth"

    error: _Code
    error_description: _Text | None = attrs.field(default=None, repr=False)
    """The words of the server, which may be any, secrets included: nobody is told."""
