"""Authorization over HTTP: servers identify their callers, and clients get tokens (2026-07-28 authorization).

`resource_server` verifies the tokens of clients, `oauth_client` gets tokens for calls, and `storage` stores them.
`fetching` sends requests to URLs that an untrusted party has named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..runtime.peer import Auth, Principal, PrincipalId
    from .credentials import AuthorizationError, Bearer, ClientAuth, SignInNeeded
    from .oauth_client.authorization_code import OAuth
    from .oauth_client.browser import OnVisit
    from .oauth_client.grants import AuthMethod, PreregisteredClient
    from .oauth_client.machine_clients import ClientCredentials, EnterpriseManaged, WorkloadIdentity
    from .resource_server.protected import OnAuthenticated, Protected, Satisfies
    from .resource_server.verification import BuiltInVerifier, Verifier, VerifierUnavailable, Verify, VerifyingObject
    from .resource_server.verifiers import IntrospectionVerifier, JWTVerifier
    from .storage.persistent import FileTokenStorage, KeyringTokenStorage
    from .storage.records import (
        IssuerRecord,
        MemoryTokenStorage,
        RegisteredClient,
        StoredAuthorization,
        Tokens,
        TokenStorage,
        TokenStorageFailed,
    )

# fmt: off
_NAMES: Final = {
    "..runtime.peer": "Auth Principal PrincipalId", ".credentials": "AuthorizationError Bearer ClientAuth SignInNeeded",
    ".oauth_client.authorization_code": "OAuth", ".oauth_client.browser": "OnVisit",
    ".oauth_client.grants": "AuthMethod PreregisteredClient",
    ".oauth_client.machine_clients": "ClientCredentials EnterpriseManaged WorkloadIdentity",
    ".resource_server.verifiers": "IntrospectionVerifier JWTVerifier",
    ".resource_server.protected": "OnAuthenticated Protected Satisfies",
    ".resource_server.verification": "BuiltInVerifier Verifier VerifierUnavailable Verify VerifyingObject",
    ".storage.persistent": "FileTokenStorage KeyringTokenStorage",
    ".storage.records": (
        "IssuerRecord MemoryTokenStorage RegisteredClient StoredAuthorization TokenStorage TokenStorageFailed Tokens"
    ),
}
__all__ = [
    "Auth", "AuthMethod", "AuthorizationError", "Bearer", "BuiltInVerifier", "ClientAuth", "ClientCredentials",
    "EnterpriseManaged", "FileTokenStorage", "IntrospectionVerifier", "IssuerRecord", "JWTVerifier",
    "KeyringTokenStorage", "MemoryTokenStorage", "OAuth", "OnAuthenticated", "OnVisit", "PreregisteredClient",
    "Principal", "PrincipalId", "Protected", "RegisteredClient", "Satisfies", "SignInNeeded", "StoredAuthorization",
    "TokenStorage", "TokenStorageFailed", "Tokens", "Verifier", "VerifierUnavailable", "Verify", "VerifyingObject",
    "WorkloadIdentity",
]
# fmt: on

# Hide __getattr__ from type checkers: they know the names of this module, and report unknown names.
if not TYPE_CHECKING:
    from ..lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _NAMES)
