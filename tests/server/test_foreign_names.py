"""Authors who come from other SDKs are told what to write here."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_mcp import RequestContext, Server, WorkerContext, open_memory
from trio_mcp.mistakes import CONTEXT_NAMES, SERVER_NAMES


@pytest.mark.parametrize("name", SERVER_NAMES)
def test_a_server_says_what_to_write_for_what_others_call(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Server' object has no attribute '{name}'; write ") as raised:
        getattr(Server("s"), name)
    assert raised.value.name == name


@pytest.mark.parametrize("context", [RequestContext(), WorkerContext(RequestContext())], ids=["context", "worker"])
@pytest.mark.parametrize("name", CONTEXT_NAMES)
def test_a_context_says_what_to_write_for_what_others_call(name: str, context: Any) -> None:
    with pytest.raises(AttributeError, match=f"Context' object has no attribute '{name}'; write "):
        getattr(context, name)


def test_other_missing_attributes_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"^'Server' object has no attribute 'colour'$"):
        Server("s").colour  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(RequestContext(), "colour")


def test_a_property_that_fails_by_an_attribute_error_of_its_own_says_that() -> None:
    class Broken(RequestContext):
        @property
        def lifespan(self) -> Any:
            return None.missing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'missing'"):
        Broken().lifespan  # noqa: B018


@pytest.mark.parametrize("decorator", ["tool", "prompt", "resource"])
def test_an_unknown_option_is_refused_where_it_is_given_with_those_that_there_are(decorator: str) -> None:
    server: Any = Server("s")
    target = ["note://a"] if decorator == "resource" else []
    with pytest.raises(
        TypeError, match=rf"@server.{decorator} has no option 'exclude_args'; write .*Provide.* options: .*title"
    ):
        getattr(server, decorator)(*target, exclude_args=["a"])


@pytest.mark.parametrize("secrets", [["text" * 10], "text" * 10, b"bytes" * 10], ids=["texts", "text", "bytes"])
def test_secrets_that_are_no_list_of_bytes_are_refused_with_what_to_write(secrets: Any) -> None:
    with pytest.raises(TypeError, match=r"secrets=\[bytes.fromhex"):
        Server("s", secrets=secrets)


async def test_what_is_no_server_cannot_be_served() -> None:
    with pytest.raises(TypeError, match="server must be a Server, or what proxy"):
        async with open_memory("batch.py"):  # type: ignore[arg-type]
            await trio.sleep_forever()
