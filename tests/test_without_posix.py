"""Without the modules that Windows lacks, all that is public is imported, and HTTP, groups, `aio`, `blocking` work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lanes import TESTS

PLUGIN = ("-p", "tests.without_posix")
FILES = (
    *("transports/http_client/test_exchanges.py", "transports/http_client/test_keeping.py"),
    *("serving/http/test_modern_requests.py", "serving/http/test_sessions.py", "serving/http/test_stateless.py"),
    *("bridging/test_aio.py", "bridging/test_aio_group.py", "hosting/test_group.py"),
)
IMPORTS = """
import importlib
import pkgutil
import tests.without_posix
import trio_mcp

found = 0
for module in [trio_mcp, *(each.name for each in pkgutil.walk_packages(trio_mcp.__path__, "trio_mcp."))]:
    module = importlib.import_module(module) if isinstance(module, str) else module
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
        found += 1
assert found > 100, found
"""


def python(*arguments: str) -> str:
    """Run Python at the root of the project, and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_every_public_name_can_be_imported_without_posix_modules(tmp_path: Path) -> None:
    file = tmp_path / "imports.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(TESTS.parent)!r})\n{IMPORTS}")
    python(str(file))


def test_tests_of_clients_servers_and_groups_pass_without_posix_modules() -> None:
    output = python("-m", "pytest", "-q", "-n", "0", *PLUGIN, *(str(TESTS / file) for file in FILES))
    assert " passed" in output
    assert "skipped" not in output.splitlines()[-1]
