"""Authors who come from other SDKs are told what to write here."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_mcp import RequestContext, Server, WorkerContext, open_memory
from trio_mcp.mistakes import CONTEXT_NAMES, SERVER_NAMES


@pytest.mark.parametrize("name", SERVER_NAMES)
def test_server_attribute_with_a_name_of_another_sdk_raises_and_suggests_the_replacement(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Server' object has no attribute '{name}'; write ") as raised:
        getattr(Server("s"), name)
    assert raised.value.name == name


@pytest.mark.parametrize("context", [RequestContext(), WorkerContext(RequestContext())], ids=["context", "worker"])
@pytest.mark.parametrize("name", CONTEXT_NAMES)
def test_context_attribute_with_a_name_of_another_sdk_raises_and_suggests_the_replacement(
    name: str, context: Any
) -> None:
    with pytest.raises(AttributeError, match=f"Context' object has no attribute '{name}'; write "):
        getattr(context, name)


def test_server_attribute_unknown_in_any_sdk_raises_a_plain_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^'Server' object has no attribute 'colour'$"):
        Server("s").colour  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(RequestContext(), "colour")


def test_attribute_error_inside_a_context_property_keeps_its_message() -> None:
    class Broken(RequestContext):
        @property
        def lifespan(self) -> Any:
            return None.missing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'missing'"):
        Broken().lifespan  # noqa: B018


@pytest.mark.parametrize("decorator", ["tool", "prompt", "resource"])
def test_unknown_server_option_raises_an_error_that_lists_the_options(decorator: str) -> None:
    server: Any = Server("s")
    target = ["note://a"] if decorator == "resource" else []
    with pytest.raises(
        TypeError, match=rf"@server.{decorator} has no option 'exclude_args'; write .*Provide.* options: .*title"
    ):
        getattr(server, decorator)(*target, exclude_args=["a"])


@pytest.mark.parametrize("secrets", [["text" * 10], "text" * 10, b"bytes" * 10], ids=["texts", "text", "bytes"])
def test_server_secrets_that_are_not_a_list_of_bytes_raise_an_error_with_instructions(secrets: Any) -> None:
    with pytest.raises(TypeError, match=r"secrets=\[bytes.fromhex"):
        Server("s", secrets=secrets)


async def test_serving_an_object_that_is_not_a_server_raises() -> None:
    with pytest.raises(TypeError, match="server must be a Server or the result of proxy"):
        async with open_memory("batch.py"):  # type: ignore[arg-type]
            await trio.sleep_forever()
