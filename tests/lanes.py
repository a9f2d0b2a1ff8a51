"""Lanes: which tests `pytest` alone runs, and which ones it leaves to `.ci/run`.

``--lane=quick``, the default, is what a change is tested with before it is committed: everything that happens in one
process or in forked ones. The other lanes have what takes long for a reason, and few of a room's tests:

- ``commands``: each test starts a Python, a command line, a type checker or a benchmark, as a user does.
- ``schedules``: random orders of events, where one example is a whole scenario, and all orders of a small world.

A single test of another lane than its file has that lane as a mark: ``@pytest.mark.commands``. ``--lane=all`` runs
every lane in one go. A file that is named on the command line runs in any lane. What needs foreign programs has folders
of its own, which ``norecursedirs`` in pyproject.toml names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

__all__ = ["LANES", "STARTS_FEW", "add_option", "lane_of", "leaves_out", "leaves_out_test"]

TESTS: Final = Path(__file__).parent

COMMANDS: Final = {
    *("auth/oauth_client/test_oauth_processes.py", "auth/storage/test_file_lock.py", "auth/test_imports.py"),
    *("benchmarks/test_budget.py", "benchmarks/test_child.py", "benchmarks/test_smoke.py", "benchmarks/test_tasks.py"),
    *("bridging/test_aio_ends.py", "bridging/test_blocking.py"),
    *("cli/test_bridge.py", "cli/test_call.py", "cli/test_call_in_terminal.py", "cli/test_demo.py"),
    *("cli/test_discovering.py", "cli/test_extras.py", "cli/test_gateway.py", "cli/test_inspect.py"),
    *("cli/test_inspect_web.py", "cli/test_install.py", "cli/test_main.py", "cli/test_odd_servers.py"),
    *("cli/test_pack.py", "cli/test_prompt.py", "cli/test_read.py", "cli/test_recordings.py", "cli/test_run.py"),
    *("cli/test_run_listening.py", "cli/test_shared.py", "cli/test_shell_completion.py", "cli/test_sign_in.py"),
    *("cli/test_signals.py", "cli/test_tasks.py", "cli/test_tasks_bridged.py", "cli/test_terminal_options.py"),
    *("cli/test_operating_options.py", "cli/test_pins.py", "cli/test_token_options.py", "cli/test_workers.py"),
    *("connecting/test_command.py", "connecting/test_errors.py", "connecting/test_exits.py"),
    *("diagnostics/test_unread.py", "fleet/test_hostile_storage.py", "fleet/test_shared_storages.py"),
    *("hosting/test_fifty.py", "hosting/test_processes.py"),
    *("interaction/browser/test_app.py", "interaction/browser/test_browser.py"),
    "interaction/browser/test_http_page.py",
    *("interaction/client/test_child.py", "interaction/client/test_interrupts.py"),
    *("interaction/server/test_descriptors.py", "interaction/server/test_signals.py"),
    "interaction/server/test_unread_stderr.py",
    *("interaction/websocket/test_load.py", "interaction/websocket/test_memory.py"),
    *("ported/test_ported_servers.py", "recording/test_hostile_recordings.py", "recording/test_hostile_texts.py"),
    *("serving/http/test_asgi_processes.py", "stores/test_sqlite_processes.py", "tasks/test_ending_processes.py"),
    *("testing/test_plugin.py", "transports/test_process_tree.py", "transports/test_stdio.py"),
    *("test_authorization_example.py", "test_security_pages.py", "test_migration_pages.py"),
    *("test_deployment_pages.py", "test_examples_typed.py", "test_five_members.py", "test_guide.py"),
    *("test_http_pages.py", "test_servers_pages.py", "test_limit.py", "test_mutations.py", "test_ported.py"),
    *("test_readme.py", "test_start.py"),
    *("test_get_started_pages.py", "test_without_extras.py", "test_without_posix.py", "test_examples_on_asyncio.py"),
}
"""Files in which most tests start a command, a browser or a Redis, or are about a command that is run by hand."""

SCHEDULES: Final = {
    *("auth/oauth_client/test_secrets_stay.py", "auth/oauth_client/test_token_keeper_random.py"),
    *("bridging/test_cancelled_at_random.py", "connecting/test_slow_servers.py", "fleet/test_shared_storm.py"),
    *("exhaustive/test_exhaustive.py", "exhaustive/test_replays.py", "exhaustive/test_hostile_replays.py"),
    "hosting/test_group_at_random.py",
    *("interaction/test_cancel_acknowledged_random.py", "interaction/test_http_random.py"),
    "interaction/test_on_asyncio_random.py",
    *("interaction/test_load_random.py", "interaction/test_rounds_random.py", "interaction/test_threads_random.py"),
    *("serving/http/test_asgi_load.py", "serving/http/test_leaks.py", "tasks/test_one_run_per_claim.py"),
    *("tasks/test_state_machine.py", "transports/http/test_against_h11.py", "test_random_schedules.py"),
}
"""Files whose tests play random or all orders of events, or so many exchanges that one test takes seconds."""

LANES: Final = {
    **dict.fromkeys((TESTS / file for file in COMMANDS), "commands"),
    **dict.fromkeys((TESTS / file for file in SCHEDULES), "schedules"),
}
"""The lanes of the files that are in none but one of these."""


STARTS_FEW: Final = {
    *("cli/test_json_text.py", "interaction/client/test_both_ends.py"),
    "interaction/server/test_stdio.py",  # the only tests of the lane that see some defects of standard streams
}
"""Files of the quick lane with tests that start small programs often, that fork what they start, or with a reason."""


def add_option(parser: pytest.Parser) -> None:
    """Add ``--lane`` to the options of pytest."""
    lanes = ["quick", *sorted(set(LANES.values())), "all"]
    parser.addoption("--lane", choices=lanes, default="quick", help="which files run: see tests/lanes.py")


def lane_of(file: Path) -> str:
    """Return the lane of a file of tests."""
    return LANES.get(file, "quick")


def leaves_out(file: Path, config: pytest.Config) -> bool:
    """Whether the lane of this run leaves out ``file``, which nobody has named."""
    wanted = config.getoption("lane")
    if wanted == "all" or lane_of(file) == wanted or not file.name.startswith("test_"):
        return False
    if wanted != "quick" and f"pytest.mark.{wanted}\n" in file.read_text(encoding="utf-8"):
        return False
    return file not in named(config)


def leaves_out_test(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether the lane of this run leaves out a test of a file that it does not leave out."""
    wanted = config.getoption("lane")
    if wanted == "all":
        return False
    marked = next((lane for lane in set(LANES.values()) if item.get_closest_marker(lane)), None)
    return (marked or lane_of(item.path)) != wanted and item.path not in named(config)


def named(config: pytest.Config) -> frozenset[Path]:
    """Return the files that are named on the command line."""
    arguments = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return frozenset(map(Path.resolve, arguments))
