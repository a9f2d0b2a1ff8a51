"""The conformance suite, installed once, and the server that it drives."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from tests.conformance.suite import HERE, LOCK, Suite
from tests.patience import PATIENCE
from tests.peers.installed import install_locked, installed_once


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest) -> Suite:
    """The suite, kept in pytest's cache. It needs npm and a package registry; else its tests are skipped."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed")
    name = f"conformance-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    return Suite(installed_once(request.config, name, partial(install_locked, "the conformance suite", LOCK)))


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of our server, in a process of its own."""
    command = [sys.executable, HERE / "server.py", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            status = process.wait(PATIENCE)
    assert status == 0, "the server ends in good order, whatever the suite has sent"
