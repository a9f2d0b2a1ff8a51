"""OAuth documents that this package reads: server metadata, client registrations and token responses.

The rule of this file: **any bytes give either an object or one `InvalidDocument`**. Unknown members are skipped. The
others are limited in size. If an optional member has the wrong type, it is read leniently, or else counts as absent.
Other code checks the meaning of URLs and names.
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
"""Pattern of an OAuth error code (RFC 6749 appendix A.7)."""


class InvalidDocument(ValueError):
    """Raised if bytes aren't a valid OAuth document.

    The message gives the reason, but no values of the document.
    """


class _Document:
    """Base class of the OAuth documents in this module."""

    __slots__ = ()

    _COMPLAINT: ClassVar[str]
    """The beginning of the error message for invalid bytes."""
    _NEVER_ABSENT: ClassVar[frozenset[str]] = frozenset()
    """Optional members that must be valid if they are present: leaving out an invalid value would be misleading, or
    less strict."""

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse JSON bytes as an OAuth document of this class.

        Raises `InvalidDocument` if the bytes aren't a valid document.
        """
        if len(data) > _LONGEST:
            raise InvalidDocument(f"{cls._COMPLAINT}: the document is longer than {_LONGEST} bytes")
        data = data.removeprefix(BOM_UTF8)
        try:
            try:
                document = msgspec.json.decode(data, type=cls)
            except msgspec.ValidationError:
                document = cls._read_leniently(msgspec.json.decode(data, type=dict[str, msgspec.Raw]))
            check_levels(data)
            return document
        except msgspec.ValidationError as error:
            reason = str(error)  # msgspec's error message names the invalid member and its expected type
        except RecursionError:
            reason = "nested too deeply"
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = "not JSON in UTF-8"
        raise InvalidDocument(f"{cls._COMPLAINT}: {reason}")

    @classmethod
    def _read_leniently(cls, members: dict[str, msgspec.Raw]) -> Self:
        """Parse each member of an OAuth document separately, and omit invalid optional members.

        Many servers write strings for numbers and lists, lists for strings, or null in lists.
        """
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
                    raise msgspec.ValidationError(f"the value has the wrong type - at `$.{name}`") from None
        return document

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the members of an OAuth document in standard form. Subclasses convert the known deviations of some
        servers."""
        return members


def _read_member(member: msgspec.Raw, kind: Any) -> Any:
    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(member, type=kind, strict=False)
    value: object = msgspec.json.decode(member)
    listed = cast("list[object]", value) if isinstance(value, list) else str(value).split()
    words = [word for word in listed if isinstance(word, str)]
    if not words or not isinstance(value, list | str):
        raise ValueError("the value must be a string or a list of strings")
    with suppress(msgspec.ValidationError):
        return msgspec.convert(words, kind)
    return msgspec.convert(" ".join(words), kind)


def _finite(_: Any, field: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{field.name} must be a finite number of seconds")


@frozen(kw_only=True)
class ResourceMetadata(_Document):
    """Protected resource metadata (RFC 9728 section 2)."""

    _COMPLAINT: ClassVar = "invalid protected resource metadata"
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
    """Authorization server metadata (RFC 8414 section 2; OpenID Connect Discovery section 3)."""

    _COMPLAINT: ClassVar = "invalid authorization server metadata"
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
    """Methods of PKCE (RFC 7636). Without ``S256``, a client must not continue (2026-07-28 authorization, Authorization
    Code Protection)."""
    token_endpoint_auth_methods_supported: _Texts | None = None
    token_endpoint_auth_signing_alg_values_supported: _Texts | None = None
    revocation_endpoint_auth_methods_supported: _Texts | None = None
    introspection_endpoint_auth_methods_supported: _Texts | None = None
    client_id_metadata_document_supported: bool | None = None
    """True if a client id can be the URL of a metadata document (2026-07-28 client registration, Client ID Metadata
    Documents)."""
    authorization_response_iss_parameter_supported: bool | None = None
    """True if authorization responses contain the issuer (RFC 9207 section 3)."""
    dpop_signing_alg_values_supported: _Texts | None = None
    """Signature algorithms of DPoP proofs that the server accepts (RFC 9449 section 5.1)."""


@frozen(kw_only=True)
class ClientMetadata(_Document):
    """OAuth client metadata (RFC 7591 section 2; OpenID Connect Registration section 2).

    It is sent to the registration endpoint, or published at the URL that is the client id.
    """

    _COMPLAINT: ClassVar = "invalid client metadata"

    client_id: _Text | None = None
    """The URL of the document itself (2026-07-28 client registration, Client ID Metadata Documents)."""
    client_name: _Text | None = None
    client_uri: _Text | None = None
    redirect_uris: _Texts | None = None
    grant_types: _Texts | None = None
    response_types: _Texts | None = None
    token_endpoint_auth_method: _Text | None = None
    application_type: _Text | None = None
    """Type of the application: ``native`` or ``web``."""
    scope: _Text | None = None
    software_id: _Text | None = None
    software_version: _Text | None = None

    def to_json(self) -> bytes:
        """Return this document as JSON data. Members that are `None` are omitted."""
        members = attrs.asdict(self, recurse=False)
        return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


@frozen(kw_only=True)
class ClientInformation(_Document):
    """The response to a client registration (RFC 7591 section 3.2.1)."""

    _COMPLAINT: ClassVar = "invalid registration response"

    client_id: _Text
    client_secret: _Token | None = attrs.field(default=None, repr=False)
    client_secret_expires_at: float | None = attrs.field(default=None, validator=_finite)
    """Time at which the client secret expires, in seconds since the epoch. 0 means never."""
    token_endpoint_auth_method: _Text | None = None
    redirect_uris: _Texts | None = None
    grant_types: _Texts | None = None
    scope: _Text | None = None

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Convert a client id or client secret to a string if a server has written it as an integer."""
        texts = {name: bytes(members[name]) for name in ("client_id", "client_secret") if name in members}
        integers = {name: text for name, text in texts.items() if text.isdigit() and len(text) <= _LONGEST_NUMBER}
        return {**members, **{name: msgspec.Raw(b'"%b"' % text) for name, text in integers.items()}}


@frozen(kw_only=True)
class TokenResponse(_Document):
    """The successful response of a token endpoint (RFC 6749 section 5.1; RFC 8693 section 2.2.1)."""

    _COMPLAINT: ClassVar = "invalid token response"

    access_token: _Token = attrs.field(repr=False)
    token_type: _Text = "Bearer"  # noqa: S105 -- not a secret
    expires_in: float | None = attrs.field(default=None, validator=_finite)
    """Lifetime of the token in seconds."""
    refresh_token: _Token | None = attrs.field(default=None, repr=False)
    scope: _Text | None = None
    issued_token_type: _Text | None = None
    """The type of a token from a token exchange."""

    @classmethod
    def _usual(cls, members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the members of a token response, which some servers wrap in another object.

        Some servers send ``{"code": 0, "data": {"access_token": ...}}``.
        """
        if "access_token" in members:
            return members
        objects = [each for each in members.values() if bytes(each).startswith(b"{")]
        inner = [msgspec.json.decode(each, type=dict[str, msgspec.Raw]) for each in objects]
        wrapped = [each for each in inner if "access_token" in each]
        return wrapped[0] if len(wrapped) == 1 else members


@frozen(kw_only=True)
class OAuthErrorResponse(_Document):
    """The error response of a token or registration endpoint that refused a request (RFC 6749 section 5.2; RFC 7591
    section 3.2.2)."""

    _COMPLAINT: ClassVar = "invalid OAuth error response"

    error: _Code
    error_description: _Text | None = attrs.field(default=None, repr=False)
    """The server's description of the error. It is never shown, because it may contain secrets."""
