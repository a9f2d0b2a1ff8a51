"""Frameworks of agents use a server of ours, over stdio and HTTP: what their models get of it, and what a cancel does.

No provider of a model is asked. pydantic-ai runs an agent whose model is a function; the tools of openai-agents, in
strict mode, and of langchain are called as their runners call them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.reports import steps_in
from tests.peers.websocket.children import listening

HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "shop_server.py")]
FRAMEWORKS = ("pydantic_ai", "openai_agents", "langchain")
REVISIONS = {
    "pydantic_ai": "revision 2026-07-28",
    "openai_agents": "revision 2026-07-28",
    "langchain": "revision 2025-11-25",
}
RECEIPT = {"text": "small soup with 5 g", "plates": 2}


@attrs.frozen
class Conversation:
    """What a framework saw, and what the server noted."""

    framework: str
    over: str
    steps: dict[str, dict[str, Any]]
    journal: Journal

    def saw(self, step: str) -> Any:
        return self.steps[step]["saw"]

    def text(self, step: str) -> str:
        """The text that the model gets, in whatever form the framework gives it."""
        (block,) = self.saw(step) if self.framework == "langchain" else [self.saw(step)]
        return block["text"]


@pytest.fixture(
    scope="module", params=[(name, over) for name in FRAMEWORKS for over in ("stdio", "http")], ids="-".join
)
def conversation(
    request: pytest.FixtureRequest, python_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    name, over = request.param
    journal = Journal(tmp_path_factory.mktemp(name) / "journal")
    host = [python_of(name), "-W", "ignore", HERE / f"{name}_host.py"]
    if over == "stdio":
        yield Conversation(name, over, steps_in(lines_of([*host, *SERVER], journal)), journal)
    else:
        with listening([*SERVER, "http"], journal, "http") as server:
            yield Conversation(name, over, steps_in(lines_of([*host, server.url], journal)), journal)


def lines_of(command: list[str | Path], journal: Journal) -> list[str]:
    env = {**os.environ, **journal.env}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_agent_framework_receives_a_tool_schema_with_references_inlined(conversation: Conversation) -> None:
    assert conversation.saw("tools") == ["fail", "hang", "order", "picture"]
    schema = conversation.saw("schema")
    assert "$ref" not in json.dumps(schema)
    order = schema["properties"]["order"]
    assert order["properties"]["size"]["enum"] == ["small", "large"]
    assert order["properties"]["toppings"]["items"]["properties"]["grams"] == {"type": "integer", "default": 10}


def test_agent_framework_receives_a_structured_result_as_data_or_json_text(conversation: Conversation) -> None:
    is_data = conversation.framework == "pydantic_ai"
    assert (conversation.saw("order") if is_data else json.loads(conversation.text("order"))) == RECEIPT


def test_agent_framework_receives_the_text_of_a_tool_failure(conversation: Conversation) -> None:
    is_text = conversation.framework == "pydantic_ai"
    assert (conversation.saw("fail") if is_text else conversation.text("fail")) == "sold out"


def test_agent_framework_receives_image_content_as_png(conversation: Conversation) -> None:
    seen = conversation.saw("picture")
    shown = {
        "pydantic_ai": lambda: seen,
        "openai_agents": lambda: seen["image_url"].partition(";")[0].removeprefix("data:"),
        "langchain": lambda: seen[0]["mime_type"],
    }[conversation.framework]
    assert shown() == "image/png"


def test_cancelled_agent_call_cancels_the_handler_if_the_framework_sends_cancel_notifications(
    conversation: Conversation,
) -> None:
    """langchain's adapters stand on ``mcp`` 1.x, which tells no server of a cancel: there the handler runs on until the
    connection ends."""
    assert conversation.saw("cancelled") == "cancelled"
    assert conversation.saw("handler") == ("runs on" if conversation.framework == "langchain" else "ended")
    assert conversation.saw("afterwards") == conversation.saw("order") or conversation.framework == "langchain"
    conversation.journal.wait_for("hang ended")


def test_agent_framework_negotiates_the_newest_revision_of_its_sdk(conversation: Conversation) -> None:
    conversation.journal.wait_for(REVISIONS[conversation.framework])
