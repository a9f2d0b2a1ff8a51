"""The Inspector: `@modelcontextprotocol/inspector`, apart from the SDK, since it needs a newer Node."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.peers.installed import install_locked, installed_once, node_in

LOCK = Path(__file__).parent / "package-lock.json"
START = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.fixture(scope="session")
def inspector(request: pytest.FixtureRequest) -> list[str]:
    """The command that starts it. It is installed once and kept in pytest's cache."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed")
    name = f"inspector-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    packages = installed_once(request.config, name, partial(install_locked, "the Inspector", LOCK))
    return [node_in(packages, "the Inspector"), str(packages / START)]
