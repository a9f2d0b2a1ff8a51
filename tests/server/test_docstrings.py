"""Sections of docstrings describe parameters, and what is left describes the tool."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest

from trio_mcp import RequestContext, Server
from trio_mcp.server.annotations import parameters_in
from trio_mcp.server.calling.signature import UserFunction

pytest.importorskip("griffe", reason="the extra docstrings is not installed")

GOOGLE = """Search the archive.

    It is large.

    Args:
        text (str): What to look for,
            at length.
        limit: How many.
        ctx: The context.

    Returns:
        The names found.

    Raises:
        ValueError: When empty.

    Note:
        It is slow.
    """
NUMPY = """Search the archive.

    It is large.

    Parameters
    ----------
    text : str
        What to look for,
        at length.
    limit : int, optional
        How many.

    Returns
    -------
    list of str
        The names found.
    """
SPHINX = """Search the archive.

    It is large.

    :param text: What to look for,
        at length.
    :param int limit: How many.
    :returns: The names found.
    :raises ValueError: When empty.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_docstring_style_describes_the_parameters_and_the_tool(doc: str, caplog: pytest.LogCaptureFixture) -> None:
    async def search(text: str, ctx: RequestContext, limit: int = 3) -> None: ...

    search.__doc__ = doc
    with caplog.at_level(logging.DEBUG):
        function = UserFunction.of(search)
    assert function.schema["properties"] == {
        "text": {"type": "string", "description": "What to look for, at length."},
        "limit": {"type": "integer", "description": "How many.", "default": 3},
    }
    assert function.doc is not None
    assert function.doc.startswith("Search the archive.\n\nIt is large.\n\nReturns: ")
    assert "The names found." in function.doc
    assert "limit" not in function.doc
    assert caplog.text == ""


def test_docstring_sections_that_do_not_describe_parameters_remain_in_the_tool_description() -> None:
    sections = "Args:\n    a: One.", "Raises:\n    ValueError: When empty.", "Note:\n    Slow."
    description, _ = parameters_in("\n\n".join(("Do it.", *sections)))
    assert description == "Do it.\n\nRaises ValueError: When empty.\n\nNote: Slow."


@pytest.mark.parametrize(
    "doc",
    [None, "", "Do it.", "Do it.\n\nReturns:\n    Nothing.", "Args are read.", "It has\nArguments: many of them."],
)
def test_docstring_without_a_parameter_section_is_the_tool_description(doc: str | None) -> None:
    assert parameters_in(doc) == (doc, {})


def test_description_in_annotated_overrides_the_description_in_the_docstring() -> None:
    class Doc:
        def __init__(self, documentation: str) -> None:
            self.documentation = documentation

    def search(
        a: Annotated[str, "plain"],
        b: Annotated[str, msgspec.Meta(description="meta", min_length=1)],
        c: Annotated[str, Doc("doc")],
        d: Annotated[str, msgspec.Meta(max_length=9)],
    ) -> None:
        """Search.

        Args:
            a: From the docstring.
            b: From the docstring.
            c: From the docstring.
            d: From the docstring.
            e: No parameter.
        """

    search.__annotations__ = {
        "a": Annotated[str, "plain"],
        "b": Annotated[str, msgspec.Meta(description="meta", min_length=1)],
        "c": Annotated[str, Doc("doc")],
        "d": Annotated[str, msgspec.Meta(max_length=9)],
    }
    properties: dict[str, Any] = UserFunction.of(search).schema["properties"]
    assert [each["description"] for each in properties.values()] == ["plain", "meta", "doc", "From the docstring."]
    assert properties["d"]["maxLength"] == 9


def test_prompt_arguments_are_described_by_the_docstring() -> None:
    server = Server("s")

    @server.prompt
    def ask(topic: str) -> str:
        """Ask.

        Args:
            topic: What about.
        """
        return topic

    (prompt,) = [entry.listed for entry in server._prompts.registry]
    assert prompt.description == "Ask."
    assert prompt.arguments is not None
    assert prompt.arguments[0].description == "What about."


@pytest.mark.commands
def test_docstring_parser_is_not_imported_for_docstrings_without_sections() -> None:
    code = """
import sys
from trio_mcp import Server
server = Server("s")

@server.tool
def add(a: int) -> int:
    "Add one."
    return a + 1

print("griffe" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
