"""Completers: what they may return, and which prompts and arguments they may belong to."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from trio_mcp import Server, open_memory
from trio_mcp.types import Completion, PromptReference, ResourceTemplateReference


class Size(Enum):
    SMALL = 1
    LARGE = "large"


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        ([1, 2.5, "x", True], ["1", "2.5", "x", "True"]),
        ((1, 2), ["1", "2"]),
        (range(2), ["0", "1"]),
        (Size, ["1", "large"]),
        ("alone", ["alone"]),
        (None, []),
        ([], []),
        (Completion([3, 4], 7), ["3", "4"]),  # pyright: ignore[reportArgumentType]
        (list(range(150)), [str(number) for number in range(100)]),
    ],
)
async def test_completion_values_that_are_not_strings_are_sent_as_strings(returned: Any, values: list[str]) -> None:
    server = Server("completing")

    @server.prompt
    async def plan(year: str) -> str:
        return year

    @server.completion(prompt="plan", argument="year")
    async def years(value: str) -> Any:
        return returned

    async with open_memory(server) as client:
        assert (await client.complete(PromptReference("plan"), "year", "")).values == values


def declared(server: Server) -> None:
    @server.prompt
    async def plan(year: str) -> str:
        return year

    @server.resource("note://{author}/{title}")
    async def note(author: str, title: str) -> str:
        return title


MISSING: list[tuple[dict[str, str], str]] = [
    ({"prompt": "plan", "argument": "yaer"}, "prompt 'plan' has no argument 'yaer': its arguments are year"),
    (
        {"resource": "note://{author}/{title}", "argument": "name"},
        "has no argument 'name': its arguments are author, title",
    ),
    ({"prompt": "plam", "argument": "year"}, "prompt 'plam' has no argument 'year': this prompt doesn't exist"),
    (
        {"resource": "note://{writer}", "argument": "writer"},
        "'note://{writer}' has no argument 'writer': this resource doesn't exist",
    ),
    ({"resource": "note://fixed", "argument": "x"}, "'note://fixed' has no argument 'x': this resource doesn't exist"),
]


@pytest.mark.parametrize(("target", "words"), MISSING)
@pytest.mark.parametrize("is_first", [True, False], ids=["before the prompt", "after the prompt"])
@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "alone"])
async def test_server_start_raises_if_the_prompt_or_argument_of_a_completer_is_missing(
    target: dict[str, Any], words: str, is_first: bool, is_mounted: bool
) -> None:
    server, outer = Server("completing"), Server("outer")

    def complete(value: str) -> list[str]:
        return [value]

    with pytest.raises(ValueError, match="completion") as raised:
        if is_first:
            server.completion(**target)(complete)
        declared(server)
        if not is_first:
            server.completion(**target)(complete)
        outer.mount(server, prefix="inner")
        async with open_memory(outer if is_mounted else server):
            pass
    assert words in str(raised.value)


async def test_server_starts_if_the_prompt_of_a_completer_was_removed() -> None:
    server = Server("completing")
    server.completion(prompt="plan", argument="year")(lambda value: [value])
    declared(server)
    for _ in range(2):
        async with open_memory(server) as client:
            reference = ResourceTemplateReference("note://{author}/{title}")
            assert (await client.complete(reference, "title", "a")).values == []
        if server._prompts.registry.is_used:
            server.remove_prompt("plan")
