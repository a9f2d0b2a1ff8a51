"""The public configurations: what they take, what they show, and what they ask their authors for."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import trio
from tests.auth.oauth_client.protected_world import protected
from tests.connecting.http.scripted import Answer, Got, modern, text

from trio_mcp import open_http
from trio_mcp.auth import (
    AuthorizationError,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    PreregisteredClient,
    WorkloadIdentity,
)


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


SERVED = modern(as_json)


def jwt_for(audience: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": audience}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


CONFIGURATIONS: list[Any] = [
    OAuth(client_id="me", client_secret="s3cret"),
    ClientCredentials("me", client_secret="s3cret"),
    ClientCredentials("me", private_key="s3cret"),
    WorkloadIdentity("s3cret"),
    EnterpriseManaged(
        idp_issuer="https://idp.example",
        idp_client=PreregisteredClient(client_id="me", client_secret="s3cret"),
        subject_token="s3cret",
        client=PreregisteredClient(client_id="me", client_secret="s3cret"),
    ),
]


@pytest.mark.parametrize("auth", CONFIGURATIONS, ids=lambda auth: type(auth).__name__)
def test_repr_of_the_oauth_configuration_hides_secrets(auth: Any) -> None:
    assert "s3cret" not in repr(auth)
    assert type(auth).__name__ in repr(auth)


def test_client_credentials_created_without_a_secret_raise_value_error() -> None:
    with pytest.raises(ValueError, match="client_secret or a private_key"):
        ClientCredentials("me")


@pytest.mark.parametrize("make", [lambda: OAuth(scopes="read"), lambda: WorkloadIdentity("a", scopes="read")])
def test_oauth_configuration_created_with_scopes_as_a_string_raises_type_error(make: Any) -> None:
    with pytest.raises(TypeError, match="sequence of strings"):
        make()


async def test_client_calls_the_workload_assertion_function_for_each_token_request() -> None:
    async with protected(SERVED) as world:
        asked = list[str]()

        async def assertion() -> str:
            asked.append("again")
            return jwt_for(world.origin)

        async with open_http(world.url, auth=WorkloadIdentity(assertion, client_id="me")) as client:
            await client.call_tool("any")
            world.expire()
            await client.call_tool("any")
    assert len(asked) == len(world.token_requests) == 2
    assert world.token_requests[0]["assertion"] == jwt_for(world.origin)


async def test_call_fails_if_the_workload_assertion_is_unavailable() -> None:
    async def assertion() -> str:
        raise OSError("the socket of the platform is gone")

    async with protected(SERVED) as world:
        with pytest.raises(AuthorizationError, match="the function assertion failed: OSError"):
            async with open_http(world.url, auth=WorkloadIdentity(assertion)):
                pytest.fail("let in")
    assert world.token_requests == []


async def test_all_waiting_calls_fail_if_the_workload_identity_is_refused() -> None:
    async with protected(SERVED) as world, open_http(world.url, auth=WorkloadIdentity(jwt_for(world.origin))) as client:
        world.expire()
        world.refuse = "unauthorized_client"
        codes = list[str | None]()

        async def call() -> None:
            with pytest.raises(AuthorizationError) as caught:
                await client.call_tool("any")
            codes.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call)
    assert codes == ["unauthorized_client"] * 20
    assert len(world.token_requests) == 2
