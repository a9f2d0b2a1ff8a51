"""The TypeScript SDK, in both of its lines, and what runs on it: the scripts beside this file.

It needs Node 20 or newer, npm and a package registry; without them the tests of this folder are skipped.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from tests.peers.installed import install_locked, installed_once

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
OLDEST_NODE = 20


@pytest.fixture(scope="session")
def scripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the scripts, which find the packages there. Those are installed once and kept in pytest's cache."""
    require_node()
    name = f"typescript-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    packages = installed_once(request.config, name, partial(install_locked, "the TypeScript SDK", LOCK))
    place = tmp_path_factory.mktemp("typescript")
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, place)
    (place / "node_modules").symlink_to(packages / "node_modules")
    return place


def require_node() -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"the TypeScript SDK needs Node {OLDEST_NODE} or newer, and this is {version}")
