"""auth_for: how the client that the suite drives gets its tokens in each scenario."""

from __future__ import annotations

from typing import Any

from trio_mcp import ClientCredentials, EnterpriseManaged, OAuth, PreregisteredClient, WorkloadIdentity
from trio_mcp.auth.credentials import ClientAuth
from trio_mcp.transports.http_client.client import HttpClient

CLIENT_METADATA_URL = "https://conformance-test.local/client-metadata.json"


async def agree(url: str) -> str:
    """Return where the authorization server sends the user, who is not asked here."""
    async with (
        HttpClient(url, proxy=None, follow_redirects=False) as http,
        http.request("GET", http.target, [], b"") as reply,
    ):
        return reply.headers["location"]


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
