"""The examples of `docs/tasks.md` run as they stand, and its tables say what the code says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import attrs
import click
import pytest
import trio
from trio.testing import MockClock

from trio_mcp import Limits, TaskSettings, open_memory
from trio_mcp.cli.group import trio_mcp
from trio_mcp.server.context.tasks import CallerTasks
from trio_mcp.stores.task_store import OnRestart
from trio_mcp.testing import RecordedTask
from trio_mcp.types import StoredTasks, TaskContext

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tasks.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))


class Modules:
    """The examples, to be imported."""

    def __init__(self, folder: Path) -> None:
        for name, code in BLOCKS.items():
            (folder / name).write_text(code)

    def get(self, name: str) -> ModuleType:
        assert f"{name}.py" in BLOCKS
        return import_module(name)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield Modules(tmp_path)
    for name in BLOCKS:
        sys.modules.pop(name.removesuffix(".py"), None)


async def test_a_caller_waits_for_a_task_or_comes_back(
    modules: Modules, capsys: pytest.CaptureFixture[str], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio, "run", lambda _: None)  # the example ends with that
    await modules.get("reader").main()
    assert capsys.readouterr().out == "3 chapters on tea\n3 chapters on milk\n"


async def test_a_host_calls_a_tool_that_is_a_task(
    modules: Modules, capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    await modules.get("host").main()
    said = capsys.readouterr().out
    assert "tea: published" in said
    assert "coffee: published" in said
    assert "reading year 2" in said
    assert said.endswith("cancelled\n")


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_work_is_done_elsewhere(
    modules: Modules, era: Literal["modern", "legacy"], autojump_clock: MockClock
) -> None:
    async with open_memory(modules.get("rendering").server, era=era) as client:
        assert (await client.call_tool("render", {"scene": "sea"})).text == "sea.png"
        task = await client.start_task("render", {"scene": "hill"})
        await trio.sleep(1)
        assert (await task.get()).message == "rendering hill"


async def test_a_task_is_resumed_by_the_next_run_of_the_server(modules: Modules) -> None:
    copying = modules.get("copying")
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


def test_the_commands_of_the_page_are_there() -> None:
    (typed,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    spans = [*re.findall(r"`(trio-mcp [^`]+)`", PAGE), *re.findall(r"(trio-mcp [^)\n]+)", typed)]
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


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table after ``heading``, without the head of the table."""
    lines = PAGE.split(heading)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = iter(lines[start:])
    found: list[list[str]] = []
    for line in table:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found[2:]


def test_the_bounds_are_those_of_the_settings() -> None:
    fields = {field.name: field.default for field in attrs.fields(TaskSettings)}
    told = {row[0].strip("`"): row[1].strip("`") for row in rows("\n## Bounds\n")}
    assert list(told) == list(fields)
    for name, default in told.items():
        expected = fields[name]
        assert default == ("time.time" if name == "now" else str(expected)), name


def test_the_page_knows_each_fate_of_a_task() -> None:
    table = "\n".join(row[0] for row in rows("`on_restart` says what becomes"))
    assert re.findall(r'`"(\w+)"`', table) == list(get_args(OnRestart))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_page_names_what_a_handler_can_do_with_tasks() -> None:
    section = PAGE.split("`ctx.task` has")[1].split("\n## ")[0]
    assert public(TaskContext) <= set(re.findall(r"`(?:await )?(\w+)(?:\(\w*\))?`", section))
    assert public(RecordedTask) >= public(TaskContext) - {"restored_as"}  # which reads `restored`
    elsewhere = PAGE.split("\n## Work that is done elsewhere\n")[1].split("\n## ")[0]
    assert (public(StoredTasks) - {"running"}) | public(CallerTasks) <= set(re.findall(r"`(\w+)[`(]", elsewhere))


def test_the_limits_that_the_page_names_are_there() -> None:
    limits = {field.name for field in attrs.fields(Limits)}
    assert set(re.findall(r"`Limits\.(\w+)`", PAGE)) <= limits
    settings = {field.name for field in attrs.fields(TaskSettings)}
    assert set(re.findall(r"`TaskSettings\.(\w+)`", PAGE)) <= settings
