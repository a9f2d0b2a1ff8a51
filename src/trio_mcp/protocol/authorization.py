"""Documents of authorization: what servers publish, are sent and answer, as far as anybody here reads them.

The law of this file: **any bytes in give an object or one `InvalidDocument`**. Members that nobody reads are skipped;
those that are read must have the right type, and are bounded. What a URL or a name means is for others to check.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias

import attrs
import msgspec
from msgspec import Meta

from ..classes import frozen
from ..jsonrpc.codec import check_levels

_LONGEST: Final = 256 * 1024

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
    _HAS_SECONDS_IN_TEXT: ClassVar[bool] = False
    """True where seconds may be a text, as some servers write."""

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the document. Raises `InvalidDocument`."""
        if len(data) > _LONGEST:
            raise InvalidDocument(f"{cls._COMPLAINT}: more than {_LONGEST} bytes")
        try:
            document = msgspec.json.decode(data, type=cls, strict=not cls._HAS_SECONDS_IN_TEXT)
            check_levels(data)
            return document
        except msgspec.ValidationError as error:
            reason = str(error)  # which member it is, and what was expected
        except RecursionError:
            reason = "nested too deeply"
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = "no JSON in UTF-8"
        raise InvalidDocument(f"{cls._COMPLAINT}: {reason}")


def _finite(_: Any, field: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{field.name} is no number of seconds")


@frozen(kw_only=True)
class ResourceMetadata(_Document):
    """What a protected resource says about itself (RFC 9728 section 2)."""

    _COMPLAINT: ClassVar = "no metadata of a protected resource"

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
    _HAS_SECONDS_IN_TEXT: ClassVar = True

    client_id: _Text
    client_secret: _Token | None = attrs.field(default=None, repr=False)
    client_secret_expires_at: float | None = attrs.field(default=None, validator=_finite)
    """Time in seconds since the epoch; 0: never."""
    token_endpoint_auth_method: _Text | None = None
    redirect_uris: _Texts | None = None
    grant_types: _Texts | None = None
    scope: _Text | None = None


@frozen(kw_only=True)
class TokenResponse(_Document):
    """The answer of a token endpoint that has granted something (RFC 6749 section 5.1; RFC 8693 section 2.2.1)."""

    _COMPLAINT: ClassVar = "no answer of a token endpoint"
    _HAS_SECONDS_IN_TEXT: ClassVar = True

    access_token: _Token = attrs.field(repr=False)
    token_type: _Text
    expires_in: float | None = attrs.field(default=None, validator=_finite)
    """Seconds."""
    refresh_token: _Token | None = attrs.field(default=None, repr=False)
    scope: _Text | None = None
    issued_token_type: _Text | None = None
    """The kind of a token that was exchanged."""


@frozen(kw_only=True)
class OAuthErrorResponse(_Document):
    """The answer of a token endpoint, or to a registration, that has refused (RFC 6749 section 5.2; RFC 7591 section
    3.2.2)."""

    _COMPLAINT: ClassVar = "no error of OAuth"

    error: _Code
    error_description: _Text | None = attrs.field(default=None, repr=False)
    """The words of the server, which may be any, secrets included: nobody is told."""
