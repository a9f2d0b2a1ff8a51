"""The examples of the pages on tasks run, and their tables agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import attrs
import click
import pytest
import trio
from tests.pages import Page
from tests.serving.http.raw import served
from trio.testing import MockClock

from trio_mcp import Limits, RequestContext, Server, TaskSettings, open_http, open_memory
from trio_mcp.cli.group import trio_mcp
from trio_mcp.server.context.tasks import CallerTasks
from trio_mcp.stores.task_store import OnRestart
from trio_mcp.testing import RecordedTask
from trio_mcp.types import StoredTasks, TaskContext

TASKS = Page("servers/tasks.md")
CLIENTS = Page("clients/tasks.md")
STORES = Page("servers/task-stores.md")
QUESTIONS = Page("servers/task-questions.md")
RESTARTS = Page("guarantees/task-restarts.md")
PAGES = (TASKS, CLIENTS, STORES, QUESTIONS, RESTARTS)


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the examples of all pages into one folder, where they can be imported."""
    writing = [page.write(tmp_path, monkeypatch) for page in PAGES]
    for each in writing:
        next(each)
    yield
    for each in writing:
        next(each, None)


async def test_task_client_example_waits_for_and_resumes_a_task(
    capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    await TASKS.load("report_reader").main()
    printed = capsys.readouterr().out
    assert printed == "3 chapters on tea\n3 chapters on milk\n"
    assert f"```text\n{printed}```" in TASKS.text


async def test_task_client_example_fetches_the_result_over_another_connection() -> None:
    async with served(TASKS.load("long_report").server) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/mcp"
        task_id = await CLIENTS.load("later_result").start(url, "tea")
        assert await CLIENTS.load("later_result").finish(url, task_id) == "3 chapters on tea"


async def test_task_host_example_answers_elicitation_of_a_task(
    capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    await QUESTIONS.load("report_host").main()
    printed = capsys.readouterr().out
    assert "tea: published" in printed
    assert "coffee: published" in printed
    assert "reading year 2" in printed
    assert printed.endswith("cancelled\n")


async def test_elicitation_of_a_task_can_be_answered_by_a_client_that_did_not_start_the_task() -> None:
    server = Server("publisher")

    @server.tool(task="required")
    async def publish_report(topic: str, ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        return f"{topic}: {(await ctx.elicit('Publish?', bool)).value}"

    async with served(server) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/mcp"
        task_id = await QUESTIONS.load("starting_host").start(url, "tea")
        assert task_id is not None
        async with open_http(url, elicitation=lambda _: {"value": True}) as client:
            assert (await client.resume_task(task_id).result()).text == "tea: True"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_external_worker_example_ends_a_task(era: Literal["modern", "legacy"], autojump_clock: MockClock) -> None:
    async with open_memory(STORES.load("rendering").server, era=era) as client:
        assert (await client.call_tool("render", {"scene": "sea"})).text == "sea.png"
        task = await client.start_task("render", {"scene": "hill"})
        await trio.sleep(1)
        assert (await task.get()).message == "rendering hill"


async def test_restart_example_resumes_a_task_in_the_next_server_run() -> None:
    copying = RESTARTS.load("resumed_copy")
    async with open_memory(copying.server) as client:
        task = await client.start_task("copy_rows", {"count": 40})
        assert task.id is not None
        while len(copying.rows) < 3:
            await trio.lowlevel.checkpoint()
    async with open_memory(copying.server) as client:
        with trio.fail_after(60):
            result = await client.resume_task(task.id).result()
    assert result.text == "copied 40 rows"
    assert sorted(set(copying.rows)) == list(range(40))
    assert len(copying.rows) <= 41


def test_task_store_example_can_be_imported() -> None:
    assert STORES.load("stored_tasks").server.info.name == "reports"


def test_documented_task_commands_and_options_exist() -> None:
    (typed,) = re.findall(r"```sh\n(.*?)```", CLIENTS.text, flags=re.DOTALL)
    spans = [*re.findall(r"`(trio-mcp [^`]+)`", CLIENTS.text), *re.findall(r"(trio-mcp [^)\n]+)", typed)]
    named: set[str] = set()
    for words in map(str.split, spans):
        command = trio_mcp.get_command(click.Context(trio_mcp), words[1])
        assert command is not None
        if isinstance(command, click.Group):
            command = command.commands[words[2]]
            named.add(words[2])
        taken = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= taken, words
    assert named == {"get", "result", "cancel", "list"}


def rows(page: Page, heading: str) -> list[list[str]]:
    """The cells of the first table after ``heading``, without the head of the table."""
    lines = page.text.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def test_documented_table_of_task_settings_lists_each_default() -> None:
    fields = {field.name: field.default for field in attrs.fields(TaskSettings)}
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows(TASKS, "Task settings")}
    assert documented == {name: str(default) for name, default in fields.items()}
    assert list(documented) == list(fields)


def test_documented_table_of_restart_policies_is_complete() -> None:
    table = "\n".join(row[0] for row in rows(RESTARTS, "Restart policies"))
    assert re.findall(r'`"(\w+)"`', table) == list(get_args(OnRestart))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def names(table: list[list[str]]) -> set[str]:
    return {name for row in table for name in re.findall(r"`(?:await )?(\w+)(?:\([^`]*\))?`", row[0])}


def test_documented_tables_of_task_attributes_are_complete() -> None:
    assert names(rows(TASKS, "The task context")) == public(TaskContext)
    assert public(RecordedTask) >= public(TaskContext) - {"restored_as"}  # which reads `restored`
    assert names(rows(STORES, "External workers")) == (public(StoredTasks) - {"running"}) | public(CallerTasks)


@pytest.mark.parametrize("page", PAGES)
def test_limits_named_on_task_pages_exist(page: Page) -> None:
    limits = {field.name for field in attrs.fields(Limits)}
    assert set(re.findall(r"`Limits\.(\w+)`", page.text)) <= limits
    settings = {field.name for field in attrs.fields(TaskSettings)}
    assert set(re.findall(r"`TaskSettings\.(\w+)`", page.text)) <= settings
