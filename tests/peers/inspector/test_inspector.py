"""The command line of the Inspector calls a server of ours over HTTP, in both eras."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import attrs
import pytest
from tests.patience import PATIENCE
from tests.peers.journals import Journal
from tests.peers.websocket.children import listening, our_server

COMMANDS = {
    "list": ["--method", "tools/list"],
    "call": ["--method", "tools/call", "--tool-name", "weather", "--tool-arg", "city=Oslo"],
    "failing call": ["--method", "tools/call", "--tool-name", "fail"],
    "read": ["--method", "resources/read", "--uri", "note://motto"],
    "prompt": ["--method", "prompts/get", "--prompt-name", "greet", "--prompt-args", "name=Bo", "tone=dry"],
}
Run: TypeAlias = tuple[int, Any]
"""The exit status, and what it printed."""


@attrs.frozen
class Runs:
    """The runs of one era, by what they do."""

    era: str
    ending: dict[str, Future[Run]]

    def result(self, what: str, status: int = 0) -> dict[str, Any]:
        """Return the result that came, without what modern results have besides."""
        ended, told = self.ending[what].result()
        assert ended == status
        besides = ("_meta", "ttlMs", "cacheScope") if self.era == "modern" else ()
        return {field: value for field, value in told["result"].items() if field not in besides}


@pytest.fixture(scope="module")
def eras(inspector: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Runs]]:
    """A process for each era and command. They mostly wait, so they run beside each other."""
    home = tmp_path_factory.mktemp("inspector")
    environment = {**os.environ, "HOME": str(home)}

    def run(url: str, era: str, command: list[str]) -> Run:
        target = [url, "--transport", "http", "--protocol-era", era, "--format", "json", "--quiet"]
        whole = [*inspector, "--cli", *target, *command]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    with listening(our_server("http"), Journal(home / "journal"), "http") as server, ThreadPoolExecutor(2) as pool:
        yield {
            era: Runs(era, {what: pool.submit(run, server.url, era, command) for what, command in COMMANDS.items()})
            for era in ("legacy", "modern")
        }


@pytest.fixture(params=["legacy", "modern"])
def runs(request: pytest.FixtureRequest, eras: dict[str, Runs]) -> Runs:
    return eras[request.param]


def test_inspector_of_the_mcp_project_uses_the_protocol_revision_selected_by_an_option(runs: Runs) -> None:
    _, told = runs.ending["call"].result()
    assert ("_meta" in told["result"]) is (runs.era == "modern")


def test_inspector_lists_the_tools_of_all_pages(runs: Runs) -> None:
    tools = {tool["name"]: tool for tool in runs.result("list")["tools"]}
    assert len(tools) == 19  # of which a page has four
    assert tools["weather"]["outputSchema"]["properties"].keys() == {"city", "celsius"}


def test_inspector_shows_content_and_structured_content_of_a_tool_result(runs: Runs) -> None:
    weather = {"city": "Oslo", "celsius": 21.5}
    content = [{"type": "text", "text": '{"city":"Oslo","celsius":21.5}'}]
    assert runs.result("call") == {"content": content, "structuredContent": weather}


def test_inspector_shows_the_error_text_of_a_failed_tool(runs: Runs) -> None:
    content = [{"type": "text", "text": "no luck today"}]
    assert runs.result("failing call", status=5) == {"content": content, "isError": True}


def test_inspector_reads_a_text_resource(runs: Runs) -> None:
    motto = {"uri": "note://motto", "mimeType": "text/plain", "text": "never late, never lost"}
    assert runs.result("read") == {"contents": [motto]}


def test_inspector_shows_a_prompt_filled_in_with_arguments(runs: Runs) -> None:
    words = {"role": "user", "content": {"type": "text", "text": "Greet Bo in a dry tone."}}
    assert runs.result("prompt") == {"description": "Words of welcome.", "messages": [words]}
