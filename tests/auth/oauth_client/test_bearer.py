"""Bearer: a token that is at hand, or an async function that returns one."""

from __future__ import annotations

import logging

import pytest

from trio_mcp.auth import AuthorizationError, Bearer
from trio_mcp.auth.credentials import Credentials, RefusedRequest

URL = "https://example.com/mcp"


def nobody_is_asked() -> None:
    pytest.fail("the user is asked")


def refusal(sent: object, attempt: int = 1, status: int = 401) -> RefusedRequest:
    return RefusedRequest(status, "Bearer", sent, attempt, 0.0)  # type: ignore[arg-type]


async def sent_by(credentials: Credentials) -> str:
    ((name, value),) = await credentials.headers("POST")
    assert name == b"Authorization"
    return value.decode()


async def test_bearer_token_is_sent_with_each_request() -> None:
    async with Bearer("a-b._~+/c==")._opened(URL, nobody_is_asked) as credentials:
        assert await sent_by(credentials) == "Bearer a-b._~+/c=="


@pytest.mark.parametrize("token", ["", "two words", "a\r\nHost: b", "ü", "=a"])
def test_invalid_bearer_token_raises_value_error_that_does_not_quote_the_token(token: str) -> None:
    with pytest.raises(ValueError, match="a bearer token may only have") as caught:
        Bearer(token)
    assert not token or token not in str(caught.value)


def test_repr_of_a_bearer_object_hides_the_token() -> None:
    assert "secret" not in repr(Bearer("secret"))


async def test_bearer_token_refused_by_the_server_raises_authorization_error() -> None:
    async with Bearer("old")._opened(URL, nobody_is_asked) as credentials:
        with pytest.raises(AuthorizationError, match="refused the token with HTTP status 401"):
            await credentials.refused(refusal(await credentials.headers("POST")))


async def test_bearer_token_function_is_called_for_each_request() -> None:
    tokens = iter("abc")

    async def source() -> str:
        return next(tokens)

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        assert [await sent_by(credentials) for _ in "abc"] == ["Bearer a", "Bearer b", "Bearer c"]


async def test_request_is_retried_if_the_bearer_token_function_returns_a_new_token() -> None:
    tokens = iter(["old", "new"])

    async def source() -> str:
        return next(tokens)

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        await credentials.refused(refusal(await credentials.headers("POST")))


async def test_request_is_not_retried_if_the_bearer_token_function_returns_the_refused_token_again() -> None:
    async def source() -> str:
        return "old"

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        with pytest.raises(AuthorizationError):
            await credentials.refused(refusal(await credentials.headers("POST")))


async def test_request_is_sent_at_most_twice_if_the_bearer_token_function_always_returns_a_new_token() -> None:
    tokens = iter("abc")

    async def source() -> str:
        return next(tokens)

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        with pytest.raises(AuthorizationError):
            await credentials.refused(refusal(await credentials.headers("POST"), attempt=2))


async def test_missing_scope_raises_authorization_error_without_a_new_call_of_the_bearer_token_function() -> None:
    async def source() -> str:
        pytest.fail("another token would have no other scope")

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        with pytest.raises(AuthorizationError, match="403"):
            await credentials.refused(refusal((), status=403))


async def test_exception_in_a_bearer_token_function_fails_the_call_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def source() -> str:
        raise KeyError("my own")

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        with caplog.at_level(logging.ERROR), pytest.raises(AuthorizationError, match="failed: KeyError"):
            await credentials.headers("POST")
    assert "my own" in caplog.text


async def test_bearer_token_function_that_returns_a_token_with_line_breaks_raises_authorization_error() -> None:
    async def source() -> str:
        return "a\r\nb"

    async with Bearer(source)._opened(URL, nobody_is_asked) as credentials:
        with pytest.raises(AuthorizationError, match="the function of Bearer must return a token of letters") as caught:
            await credentials.headers("POST")
    assert "a\r" not in str(caught.value)
