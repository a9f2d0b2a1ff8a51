"""auth_for: how the client that the suite drives gets its tokens in each scenario."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import trio

from trio_mcp.auth import ClientAuth, ClientCredentials, EnterpriseManaged, OAuth, PreregisteredClient, WorkloadIdentity

CLIENT_METADATA_URL = "https://conformance-test.local/client-metadata.json"


async def agree(url: str) -> str:
    """Return where the authorization server sends the user, who is not asked here."""
    return await trio.to_thread.run_sync(redirection_of, url)


def redirection_of(url: str) -> str:
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.netloc, timeout=60)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().headers["location"]


def auth_for(scenario: str, context: dict[str, Any]) -> ClientAuth:
    match scenario.removeprefix("auth/"):
        case "client-credentials-jwt":
            return ClientCredentials(
                client_id=context["client_id"],
                private_key=context["private_key_pem"],
                signing_algorithm=context["signing_algorithm"],
            )
        case "client-credentials-basic":
            return ClientCredentials(client_id=context["client_id"], client_secret=context["client_secret"])
        case "wif-jwt-bearer":
            return WorkloadIdentity(client_id=context["client_id"], assertion=context["valid_jwt"])
        case "enterprise-managed-authorization":
            return EnterpriseManaged(
                client=PreregisteredClient(client_id=context["client_id"], client_secret=context["client_secret"]),
                idp_issuer=context["idp_issuer"],
                idp_token_endpoint=context["idp_token_endpoint"],
                idp_client=PreregisteredClient(client_id=context["idp_client_id"]),
                subject_token=context["idp_id_token"],
            )
        case "pre-registration":
            return OAuth(
                client_id=context["client_id"],
                client_secret=context["client_secret"],
                issuer=context["issuer"],
                on_visit=agree,
            )
        case "dpop" | "dpop-nonce":
            return OAuth(client_metadata_url=CLIENT_METADATA_URL, on_visit=agree, dpop=True)
        case _:
            return OAuth(client_metadata_url=CLIENT_METADATA_URL, on_visit=agree)
