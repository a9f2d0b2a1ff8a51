"""The pytest plugin, run in a separate pytest process."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tests.pages import ROOT, Page
from tests.patience import PATIENCE

from trio_mcp.testing import SharedStorageSuite, TaskStoreSuite

BLOCKS = {f"{name}.py": code for name, code in Page("testing").blocks.items()}
"""The examples of the pages `docs/testing`, by the names of their files."""

SERVER = """
import pytest
from trio_mcp import Server

@pytest.fixture
def mcp_server():
    server = Server("mine")
    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b
    return server
"""


def run_pytest(
    folder: Path, *options: str, modes: tuple[str, ...] = ("-p", "no:asyncio", "-o", "trio_mode=true")
) -> subprocess.CompletedProcess[str]:
    # Named, so that it is there, too, where the package was installed before it had a plugin.
    command = [sys.executable, "-m", "pytest", "-p", "pytest_trio_mcp", "-p", "no:cacheprovider", "-W", "error"]
    return subprocess.run(
        # To rewrite the assertions of hypothesis takes most of the time, where nothing may be kept of that.
        [*command, "--tb=short", "--assert=plain", *modes, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def test_pytest_plugin_is_an_entry_point_of_the_package() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert entries == {"pytest_trio_mcp": "pytest_trio_mcp"}  # one name for both, so that it is loaded once
    assert import_module(entries["pytest_trio_mcp"]).pytest_addoption


def test_pytest_plugin_imports_no_large_modules_before_a_fixture_is_used() -> None:
    code = "import sys, pytest_trio_mcp; print({'trio', 'trio_mcp', 'attrs', 'msgspec'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.stdout == "set()\n", ran.stderr


def test_mcp_client_fixture_runs_with_legacy_and_modern_revisions(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        SERVER
        + """
async def test_client_calls_a_tool(mcp_client, mcp_era, autojump_clock):
    assert mcp_client.revision.handshake == (mcp_era == "legacy")
    assert (await mcp_client.call_tool("add", {"a": 1, "b": 2})).text == "3"
"""
    )
    ran = run_pytest(tmp_path, "-v")
    assert "test_client_calls_a_tool[legacy] PASSED" in ran.stdout, ran.stdout
    assert "test_client_calls_a_tool[modern] PASSED" in ran.stdout, ran.stdout
    assert ran.returncode == 0


def test_mcp_scripted_client_fixture_runs_with_legacy_and_modern_revisions(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        SERVER
        + """
async def test_scripted_client_calls_a_tool(mcp_scripted_client, autojump_clock):
    await mcp_scripted_client.expect_text(await mcp_scripted_client.call_tool("add", {"a": 1, "b": 2}), "3")
"""
    )
    assert "2 passed" in run_pytest(tmp_path).stdout


def test_user_fixtures_can_override_protocol_revision_and_client_options_of_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        SERVER
        + """
from trio_mcp.types import Implementation

@pytest.fixture
def mcp_era():
    return "legacy"

@pytest.fixture
def mcp_client_options():
    return {"info": Implementation("me", "9"), "revision": "2025-06-18"}

async def test_mcp_client_has_the_client_name_and_revision_set_by_fixtures(mcp_client):
    assert mcp_client.settings.info.name == "me"
    assert mcp_client.revision.name == "2025-06-18"
"""
    )
    assert "1 passed" in run_pytest(tmp_path).stdout


def test_missing_mcp_server_fixture_raises_an_error_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("async def test_client_without_a_server(mcp_client): pass")
    ran = run_pytest(tmp_path)
    assert "2 errors" in ran.stdout
    assert "def mcp_server():" in ran.stdout


def test_mcp_context_fixture_is_new_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest

@pytest.mark.parametrize("time", [1, 2])
def test_mcp_context_contains_only_the_progress_report_of_this_test(mcp_context, time):
    assert mcp_context.progress(1)
    assert len(mcp_context.progress_reports) == 1
"""
    )
    assert "2 passed" in run_pytest(tmp_path).stdout


def test_mcp_seed_is_printed_on_failure_and_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_seed_7(mcp_seed):\n    assert mcp_seed == 7, f'seed {mcp_seed}'\ndef test_seed_exists(mcp_seed): pass"
    )
    failed = run_pytest(tmp_path).stdout
    (seed,) = set(re.findall(r"AssertionError: seed (\d+)", failed))
    assert f"repeat it with --mcp-seed={seed}" in failed
    assert failed.count("repeat it") == 1
    assert "2 passed" in run_pytest(tmp_path, "--mcp-seed=7").stdout


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The examples of the pages, as files."""
    for name, code in BLOCKS.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def test_examples_on_the_testing_pages_pass(page: Path) -> None:
    ran = run_pytest(page)
    tests = sum(code.count("async def test_") for code in BLOCKS.values())
    tests += sum(name.startswith("test_") for suite in (TaskStoreSuite, SharedStorageSuite) for name in dir(suite))
    assert f"{tests + 1} passed" in ran.stdout, ran.stdout  # the one with mcp_client runs in two eras
    assert ran.returncode == 0


def test_tests_on_the_testing_pages_fail_for_a_server_that_does_not_clean_up(page: Path) -> None:
    server = page / "report_server.py"
    server.write_text(server.read_text().replace("locked.discard(name)", "pass"))
    ran = run_pytest(page, "test_cancellation.py", "test_faults.py")
    assert "4 failed" in ran.stdout, ran.stdout


def test_commands_on_the_first_testing_page_succeed(page: Path) -> None:
    pytest.importorskip("pyright", reason="needs the type checker: pip install -e '.[dev]'")
    (block,) = re.findall(r"```sh\n(.*?)```", Page("testing/in-memory.md").text, flags=re.DOTALL)
    _, test, check = block.splitlines()
    for line, words in ((test, "1 passed"), (check, "0 errors")):
        ran = subprocess.run(
            [sys.executable, "-m", *shlex.split(line, comments=True)],
            cwd=page,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert words in ran.stdout, ran.stdout + ran.stderr


def test_documented_table_lists_each_fixture_of_the_pytest_plugin() -> None:
    named = re.findall(r"^\| `(mcp_\w+)` \|", Page("testing/in-memory.md").text, flags=re.MULTILINE)
    plugin = (ROOT / "src/pytest_trio_mcp.py").read_text()
    fixtures = re.findall(r"^@pytest\.fixture.*\n(?:async )?def (\w+)", plugin, flags=re.MULTILINE)
    assert sorted(named) == sorted(fixtures)


# Projects with other plugins beside it

ON_TRIO = """
async def test_client_calls_a_tool_on_trio(mcp_client):
    import trio
    await trio.lowlevel.checkpoint()
    assert (await mcp_client.call_tool("add", {"a": 1, "b": 2})).text == "3"
"""
ON_ASYNCIO = """
async def test_client_calls_a_tool_on_asyncio(mcp_client):
    import asyncio
    await asyncio.sleep(0)
    assert (await mcp_client.call_tool("add", {"a": 1, "b": 2})).text == "3"
"""
TRIO_MARK, ASYNCIO_MARK = "@pytest.mark.trio", "@pytest.mark.asyncio"
ANYIO_MARK = "@pytest.mark.anyio"
ANYIO_BACKEND = """
@pytest.fixture
def anyio_backend():
    return "{}"
"""
WRITTEN_AS_TOLD = """
import pytest_asyncio
import trio_mcp.aio

@pytest_asyncio.fixture
async def mcp_client(mcp_server):
    async with trio_mcp.aio.open_memory(mcp_server) as client:
        yield client
"""
TRIO_MODE, SCOPE = ("-o", "trio_mode=true"), ("-o", "asyncio_default_fixture_loop_scope=function")
STRICT, AUTO = (*SCOPE, "-o", "asyncio_mode=strict"), (*SCOPE, "-o", "asyncio_mode=auto")
NO_TRIO, NO_ASYNCIO = ("-p", "no:trio"), ("-p", "no:asyncio")


@pytest.mark.parametrize(
    ("modes", "code", "outcome"),
    [
        (NO_ASYNCIO, f"{TRIO_MARK}{ON_TRIO}", "2 passed"),
        (STRICT, f"{TRIO_MARK}{ON_TRIO}", "2 passed"),
        ((*STRICT, *TRIO_MODE), ON_TRIO, "2 passed"),
        (STRICT, f"{WRITTEN_AS_TOLD}{ASYNCIO_MARK}{ON_ASYNCIO}", "1 passed"),
        (STRICT, f"{TRIO_MARK}{ON_TRIO}{ASYNCIO_MARK}{ON_ASYNCIO}", "2 passed, 2 errors"),
        ((*AUTO, *NO_TRIO), ON_ASYNCIO, "2 passed"),
        (AUTO, ON_ASYNCIO, "2 passed"),
        ((*NO_TRIO, *NO_ASYNCIO), f"{ANYIO_MARK}{ON_TRIO}{ANYIO_BACKEND.format('trio')}", "2 passed"),
        ((*NO_TRIO, *NO_ASYNCIO), f"{ANYIO_MARK}{ON_ASYNCIO}{ANYIO_BACKEND.format('asyncio')}", "2 passed"),
    ],
)
def test_mcp_client_fixture_can_be_used_with_other_async_plugins(
    tmp_path: Path, modes: tuple[str, ...], code: str, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text(f"{SERVER}\n{code}")
    ran = run_pytest(tmp_path, modes=modes)
    assert outcome in ran.stdout, ran.stdout


@pytest.mark.parametrize(
    ("modes", "code", "told"),
    [
        (STRICT, f"{ASYNCIO_MARK}{ON_ASYNCIO}", "@pytest_asyncio.fixture"),
        ((*STRICT, *NO_TRIO), f"{ASYNCIO_MARK}{ON_ASYNCIO}", "set asyncio_mode = auto"),
        ((*NO_TRIO, *NO_ASYNCIO), ON_TRIO, "mark the test with @pytest.mark.trio"),
        (NO_ASYNCIO, ON_TRIO, "mark the test with @pytest.mark.trio"),
        (AUTO, f"{TRIO_MARK}{ON_TRIO}", "Set asyncio_mode = strict"),
    ],
)
def test_fixture_that_no_async_plugin_runs_raises_error_with_advice(
    tmp_path: Path, modes: tuple[str, ...], code: str, told: str
) -> None:
    (tmp_path / "test_it.py").write_text(f"{SERVER}\n{code}")
    ran = run_pytest(tmp_path, modes=modes)
    assert told in ran.stdout, ran.stdout
    assert "2 errors" in ran.stdout
