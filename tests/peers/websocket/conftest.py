"""The environment of the peer: ``mcp`` 1.30.0, the last release that has WebSocket, beside which 2.x cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

VERSION = "1.30.0"
PACKAGES = [f"mcp[ws]=={VERSION}", "uvicorn", "starlette", "websockets"]
PATIENCE = 180.0
"""Seconds after which no package index is there; no measure of speed."""


@pytest.fixture(scope="session")
def peer_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of that environment, which is made once and kept in pytest's cache."""
    cache = request.config.cache.mkdir("peers")
    made = cache / f"mcp-{VERSION}-python-{sys.version_info.major}.{sys.version_info.minor}"
    if not made.exists():
        # Complete under its final name or not there at all, whoever else makes it at the same time.
        making = cache / f"{made.name}-{os.getpid()}"
        try:
            make(making)
            making.rename(made)
        except OSError:
            if not made.exists():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return made / "bin" / "python"


def make(path: Path) -> None:
    install = [path / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", "--retries=1", *PACKAGES]
    try:
        venv.create(path, with_pip=True, symlinks=True, clear=True)
        subprocess.run(install, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except subprocess.TimeoutExpired:
        pytest.skip(f"mcp {VERSION} could not be installed: pip took longer than {PATIENCE:g} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mcp {VERSION} could not be installed: {error}: {(error.stderr or '')[-300:]}")
