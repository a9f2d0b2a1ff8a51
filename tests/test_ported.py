"""The servers of other people in `examples/ported`: their tools work in both eras, and end with their calls."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Client, open_memory

FOLDER = Path(__file__).parent.parent / "examples" / "ported"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def load(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ModuleType:
    """The module of a server, as ``trio-mcp run FILE -- ARGUMENTS`` loads it."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    spec = spec_from_file_location(f"ported_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@ERAS
async def test_ported_time_server_returns_and_converts_times(era: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")
    time = load("time_server", monkeypatch)
    async with open_memory(time.server, era=era) as client:
        now = (await client.call_tool("get_current_time", {"timezone": "Asia/Tokyo"})).as_(time.TimeResult)
        assert now.datetime.endswith("+09:00")
        given = {"source_timezone": "Europe/Warsaw", "time": "16:30:00", "target_timezone": "Asia/Kathmandu"}
        converted = (await client.call_tool("convert_time", {**given, "day": "2026-01-15"})).as_(time.TimeConversion)
        assert converted.target.datetime == "2026-01-15T21:15:00+05:45"
        assert (converted.time_difference, converted.source.is_dst) == ("+4.75h", False)
        for wrong in ("Nowhere/Land", "../../etc/passwd"):
            failed = await client.call_tool("get_current_time", {"timezone": wrong})
            assert failed.is_error
            assert "there is no time zone" in failed.text


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "tester")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "tester@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", tmp_path], check=True)
    (tmp_path / "a.txt").write_text("one\n")
    return tmp_path


async def text_of(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.text
    return result.text


@ERAS
async def test_ported_git_server_runs_git_operations(
    era: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load("git_server", monkeypatch, str(repository)).server
    async with open_memory(server, era=era) as client:
        assert "a.txt" in await text_of(client, "git_status")
        await text_of(client, "git_add", files=["a.txt"])
        assert "+one" in await text_of(client, "git_diff_staged")
        await text_of(client, "git_commit", message="--first")
        assert "--first" in await text_of(client, "git_log")
        await text_of(client, "git_create_branch", branch_name="other")
        assert await text_of(client, "git_checkout", branch_name="other") == "switched to other"
        assert "other" in await text_of(client, "git_branch")
        (repository / "a.txt").write_text("two\n")
        assert "+two" in await text_of(client, "git_diff_unstaged")
        assert "+two" in await text_of(client, "git_diff", target="main")
        assert "--first" in await text_of(client, "git_show", revision="HEAD")


@ERAS
async def test_ported_git_server_rejects_arguments_that_look_like_options(
    era: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load("git_server", monkeypatch, str(repository)).server
    async with open_memory(server, era=era) as client:
        for tool, name in (("git_show", "revision"), ("git_diff", "target"), ("git_checkout", "branch_name")):
            refused = await client.call_tool(tool, {name: f"--output={repository}/written"})
            assert refused.is_error
        assert (await client.call_tool("git_add", {"files": ["--force"]})).is_error
    assert not (repository / "written").exists()


@ERAS
async def test_cancelled_call_of_the_ported_git_server_ends_the_git_process(
    era: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = repository / "told"
    os.mkfifo(told)
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 1000\n")
    hook.chmod(0o755)
    server = load("git_server", monkeypatch, str(repository)).server
    async with open_memory(server, era=era) as client, trio.open_nursery() as nursery:
        await text_of(client, "git_add", files=["a.txt"])
        nursery.start_soon(client.call_tool, "git_commit", {"message": "never"})
        with trio.fail_after(PATIENCE):
            process = os.pidfd_open(int(await trio.Path(told).read_text()))
        nursery.cancel_scope.cancel(reason="the user has left")
    try:
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(process)  # it has ended
    finally:
        os.close(process)


@ERAS
async def test_ported_sqlite_server_queries_and_changes_a_database(
    era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load("sqlite_server", monkeypatch, str(tmp_path / "data.db")).server
    async with open_memory(server, era=era) as client:
        await text_of(client, "create_table", query="CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
        await text_of(client, "write_query", query="INSERT INTO notes (text) VALUES ('milk'), ('tea')")
        rows = await client.call_tool("read_query", {"query": "SELECT * FROM notes"})
        assert rows.as_(list[dict[str, Any]]) == [{"id": 1, "text": "milk"}, {"id": 2, "text": "tea"}]
        assert (await client.call_tool("list_tables")).as_(list[str]) == ["notes"]
        columns = await client.call_tool("describe_table", {"table_name": "notes"})
        assert [each["name"] for each in columns.as_(list[dict[str, Any]])] == ["id", "text"]
        await text_of(client, "append_insight", insight="tea wins")
        (memo,) = (await client.read_resource("memo://insights")).contents
        assert getattr(memo, "text", None) == "- tea wins"
        prompt = await client.get_prompt("mcp-demo", {"topic": "tea"})
        assert "data about tea" in str(prompt.messages[0].content)


@ERAS
async def test_read_query_of_the_ported_sqlite_server_cannot_change_the_database(
    era: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load("sqlite_server", monkeypatch).server
    async with open_memory(server, era=era) as client:
        await text_of(client, "create_table", query="CREATE TABLE notes (text TEXT)")
        refused = await client.call_tool("read_query", {"query": "INSERT INTO notes VALUES ('x') RETURNING *"})
        assert refused.is_error
        assert "readonly" in refused.text
        assert (await client.call_tool("create_table", {"query": "DROP TABLE notes"})).is_error
        nothing = await client.call_tool("describe_table", {"table_name": 'x"); DROP TABLE notes; --'})
        assert nothing.as_(list[Any]) == []
        assert (await client.call_tool("list_tables")).as_(list[str]) == ["notes"]


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@ERAS
# CPython 3.15 reports a statement that was interrupted once more, where the statement is freed.
@pytest.mark.filterwarnings("ignore:Exception ignored in stmt_dealloc")
async def test_cancelled_call_of_the_ported_sqlite_server_interrupts_an_endless_query(
    era: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load("sqlite_server", monkeypatch).server
    async with open_memory(server, era=era) as client:
        with trio.fail_after(PATIENCE):
            with trio.move_on_after(0.2):
                await client.call_tool("read_query", {"query": ENDLESS})
            assert (await client.call_tool("list_tables")).as_(list[str]) == []
